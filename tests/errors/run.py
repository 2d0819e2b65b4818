#!/usr/bin/env python3
"""Error goldens: every .plan file of this folder says in comments which diagnostics `plc check` must give for it.

    heads on tensor        # error[P0412]: `heads on tensor` matches nothing
                           # help: did you mean `head`?

A comment `error[CODE]: text` (or warning, note, performance) expects one diagnostic on that line, or, when the comment
stands alone, on the last line before it that holds more than a comment. `text` must occur in the message or its label.
`help: text` and `note: text` after it must occur in its helps and notes. `nowhere error[CODE]: text` expects one without
a place. `imported error[CODE]` expects one in another file. `# args: --set x=1` adds arguments. `#| text` lines hold
the whole rendering, exactly. A missing and an unexpected diagnostic both fail; so does a wrong exit code.

    run.py PLC [FILE...]
"""
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
EXPECT = re.compile(r"#\s*(nowhere |imported )?(error|warning|note|performance)\[(P\d{4})\](?::\s*(.*))?$")
CHILD = re.compile(r"#\s*(help|note):\s*(.*)$")
ARGS = re.compile(r"#\s*args:\s*(.*)$")
FULL = re.compile(r"^#\| ?(.*)$")


class Expected:
    def __init__(self, line, where, level, code, text):
        self.line, self.where, self.level, self.code, self.text = line, where, level, code, text or ""
        self.children = []

    def __str__(self):
        place = self.where.strip() or "line %d" % self.line
        return "%s: %s[%s]: %s" % (place, self.level, self.code, self.text)


def read_expectations(path):
    expected, arguments, rendering, last = [], [], [], 0
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            full = FULL.match(line)
            if full:
                rendering.append(full.group(1).rstrip())
                continue
            alone = line.lstrip().startswith("#")
            if not alone and line.strip():
                last = number
            match = EXPECT.search(line)
            child = CHILD.search(line)
            if match:
                expected.append(Expected(last, match.group(1) or "", match.group(2), match.group(3), match.group(4)))
            elif child and expected:
                expected[-1].children.append((child.group(1), child.group(2)))
            elif ARGS.search(line):
                arguments += ARGS.search(line).group(1).split()
    return expected, arguments, rendering


def matches(expected, diagnostic, name):
    if (diagnostic.get("code") or {}).get("code") != expected.code or diagnostic["level"] != expected.level:
        return False
    spans = [span for span in diagnostic.get("spans", []) if span.get("is_primary")]
    here = bool(spans) and os.path.basename(spans[0]["file_name"]) == name
    if expected.where == "nowhere ":
        if spans:
            return False
    elif expected.where == "imported ":
        if not spans or here:
            return False
    elif not here or spans[0]["line_start"] != expected.line:
        return False
    text = diagnostic["message"] + " " + " ".join(span.get("label") or "" for span in spans)
    if expected.text not in text:
        return False
    children = [(child["level"], child["message"]) for child in diagnostic.get("children", [])]
    return all(any(level == kind and want in message for level, message in children) for kind, want in expected.children)


def show(diagnostic):
    span = next((span for span in diagnostic.get("spans", []) if span.get("is_primary")), None)
    place = "%s:%d" % (os.path.basename(span["file_name"]), span["line_start"]) if span else "nowhere"
    lines = ["%s: %s[%s]: %s" % (place, diagnostic["level"], (diagnostic.get("code") or {}).get("code"), diagnostic["message"])]
    if span and span.get("label"):
        lines.append("      ^ %s" % span["label"])
    for child in diagnostic.get("children", []):
        lines.append("      %s: %s" % (child["level"], child["message"]))
    return "\n".join(lines)


def read_diagnostics(output):
    found = []
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        value = json.loads(line)
        if "message" in value and "level" in value:
            found.append(value)
    return found


def check_rendering(plc, path, arguments, rendering):
    done = subprocess.run(plc + ["check", os.path.basename(path)] + arguments, cwd=HERE, capture_output=True, text=True, timeout=60)
    blocks = re.split(r"\n\s*\n", done.stderr or done.stdout)  # what is not built yet comes and goes: left out
    kept = "\n\n".join(block.strip("\n") for block in blocks if not block.lstrip().startswith("note[P9000]"))
    got = [line.rstrip() for line in kept.splitlines()]
    while got and not got[-1]:
        got.pop()
    if got == rendering:
        return []
    return ["the rendering differs; it is now:"] + ["#| " + line if line else "#|" for line in got]


def check_file(plc, path):
    expected, arguments, rendering = read_expectations(path)
    command = plc + ["check", "--json", os.path.basename(path)] + arguments
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60)
    problems = []
    wanted_code = 1 if any(e.level == "error" for e in expected) else 0
    if done.returncode != wanted_code:
        problems.append("exit code %d instead of %d" % (done.returncode, wanted_code))
        if done.returncode not in (0, 1):
            problems.append((done.stderr or done.stdout).strip())
    found = [d for d in read_diagnostics(done.stdout + "\n" + done.stderr) if (d.get("code") or {}).get("code") != "P9000"]
    left = list(found)
    for e in expected:
        hit = next((d for d in left if matches(e, d, os.path.basename(path))), None)
        if hit is None:
            problems.append("missing     %s" % e + "".join("\n      %s: %s" % child for child in e.children))
        else:
            left.remove(hit)
    problems += ["unexpected  %s" % show(d) for d in left]
    if rendering:
        problems += check_rendering(plc, path, arguments, rendering)
    return problems, len(expected)


def main():
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    plc = [os.path.abspath(sys.argv[1])]
    files = sys.argv[2:] or sorted(os.path.join(HERE, f) for f in os.listdir(HERE) if f.endswith(".plan"))
    failed = total = 0
    for path in files:
        problems, n = check_file(plc, path)
        total += n
        if problems:
            failed += 1
            print("%s:" % os.path.basename(path))
            for problem in problems:
                print("  " + problem)
    print("%d files, %d expected diagnostics, %d files failed" % (len(files), total, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
