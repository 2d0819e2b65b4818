#!/usr/bin/env python3
"""Documents are tests: what they say to type works, what they show is what comes out, and what they link is there.

    commands.py ROOT PLC

- Every `sh` block of README.md runs, line by line, in one empty folder where the first `plan` block is train.plan. A program's training is
  cut to three steps. A block under `<!-- not run: reason -->` is passed over.
- In docs/architecture.md a block that begins with `$ plc ...` shows that command's output: each of its lines occurs there, in order.
  `...` alone stands for lines left out, in a line for a part of it; the numbers that tell nodes and kernels apart may differ.
- `plan` blocks that are whole files pass `plc check`; every plan of every example builds, or is refused as not built yet.
- Links to files of the tree lead somewhere, and the README names every package of scripts/packages.txt.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT, PLC = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
FENCE = re.compile(r"(<!-- not run: [^>]+ -->\s*\n)?^```(\w*)\n(.*?)^```", re.M | re.S)
ENVIRONMENT = dict(os.environ, PATH=os.path.dirname(PLC) + os.pathsep + os.environ["PATH"], NO_COLOR="1")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def run(command, folder, seconds=600):
    return subprocess.run(["bash", "-c", command], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)


def shortened(command):
    """Training for three steps only."""
    return re.sub(r"(^|&& )(\./[\w-]+)(?![\w-]| (?:sample|--help|--describe|--version))", r"\1\2 --steps 3", command)


def check_readme():
    n, blocks = 0, list(FENCE.finditer(read("README.md")))
    with tempfile.TemporaryDirectory() as folder:
        plans = [block.group(3) for block in blocks if block.group(2) == "plan"]
        with open(os.path.join(folder, "train.plan"), "w", encoding="utf-8") as file:
            file.write(plans[0])
        for name in ("examples", "scripts", "docs"):
            os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
        for block in blocks:
            if block.group(2) != "sh" or block.group(1):
                continue
            for line in block.group(3).splitlines():
                command = shortened(line.split(" #")[0].strip())
                if not command:
                    continue
                n += 1
                done = run(command, folder)
                if done.returncode:
                    yield "README.md: `%s` ends with %d: %s" % (command, done.returncode, done.stderr.strip()[-400:])
    if n < 5:
        yield "README.md: only %d commands were found" % n


def numberless(line):
    """The line without the numbers of nodes and kernels, and with single blanks."""
    return re.sub(r" +", " ", re.sub(r"%\d+|(?<=[a-z_])\.\d+\b|^ +\d+ (?=[a-z])", "#", line)).strip()


def check_excerpts(document):
    n = 0
    for block in FENCE.finditer(read(document)):
        first, _, shown = block.group(3).partition("\n")
        if not first.startswith("$ plc "):
            continue
        n += 1
        done = run(first[2:], ROOT)
        if done.returncode:
            yield "%s: `%s` ends with %d: %s" % (document, first[2:], done.returncode, done.stderr.strip()[-400:])
            continue
        lines, at = [numberless(line) for line in done.stdout.splitlines()], 0
        for wanted in shown.splitlines():
            if wanted.strip() in ("", "..."):
                continue
            pattern = re.compile(".*".join(re.escape(part) for part in numberless(wanted).split("...")))
            found = next((i for i in range(at, len(lines)) if pattern.fullmatch(lines[i])), None)
            if found is None:
                yield "%s: `%s` does not show %r" % (document, first[2:], wanted)
                break
            at = found + 1
    if n < 5:
        yield "%s: only %d excerpts were found" % (document, n)


def check_plan_blocks():
    with tempfile.TemporaryDirectory() as folder:
        for document in ["README.md"] + sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True)):
            for block in FENCE.finditer(read(document)):
                if block.group(2) != "plan" or not re.search(r"^train\b.*\{", block.group(3), re.M) or not re.search(r"^(import|model)\b", block.group(3), re.M):
                    continue
                path = os.path.join(folder, "block.plan")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(block.group(3))
                done = run("plc check block.plan", folder)
                if done.returncode:
                    yield "%s: a plan that it shows is refused: %s" % (document, done.stderr.strip()[:400])


def check_examples():
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(glob.glob(os.path.join(ROOT, "examples", "*.plan"))):
            name = os.path.basename(path)
            done = run("plc check '%s' && plc fmt - <'%s' >formatted.plan && plc fmt --check formatted.plan" % (path, path), folder)
            if done.returncode:
                yield "%s: %s" % (name, done.stderr.strip()[:400])
            plans = re.findall(r"^plan (\w+)", read("examples", name), re.M)
            if not plans:
                yield "%s has no plan" % name
            for plan in plans:
                done = run("plc build '%s' --plan %s -o program" % (path, plan), folder)
                refused = done.returncode == 1 and set(re.findall(r"error\[(P\d+)\]", done.stderr)) == {"P9000"}
                if done.returncode and not refused:
                    yield "%s: plan %s: %s" % (name, plan, done.stderr.strip()[:400])


def check_links():
    for document in ["README.md"] + [os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True)]:
        text = re.sub(r"^```.*?^```", "", read(document), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if not re.match(r"\w+:", target) and not os.path.exists(os.path.join(ROOT, os.path.dirname(document), target)):
                yield "%s: the link to %s leads nowhere" % (document, target)
    readme = read("README.md")
    for line in read("scripts", "packages.txt").splitlines():
        if line and not line.startswith("#") and "`%s`" % line.split()[1] not in readme:
            yield "README.md does not name the package %s" % line.split()[1]


def main():
    if not shutil.which("bash"):
        sys.exit("bash is not installed")
    failed = 0
    for what, faults in (("commands of the README", check_readme()), ("excerpts of docs/architecture.md", check_excerpts("docs/architecture.md")),
                         ("plans in documents", check_plan_blocks()), ("examples", check_examples()), ("links", check_links())):
        faults = list(faults)
        failed += len(faults)
        print("%s: %d faults" % (what, len(faults)))
        for fault in faults:
            print("    " + fault)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
