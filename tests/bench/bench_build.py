#!/usr/bin/env python3
"""How long `plc check` and `plc build` take, each as a fresh process; best of N. And when GPT-2's first forward pass starts.

usage: bench_build.py PLC [--runs 10]
"""
import argparse, json, os, shutil, subprocess, tempfile, time

import benching as b


def llvm_loaded(plc, *arguments):
    """Asks the dynamic linker which libraries the command brings in."""
    p = subprocess.run([plc, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "LD_DEBUG": "libs"})
    return "libLLVM" in p.stdout


def first_forward(program, folder):
    """Seconds from the start of the process to the start of its first forward pass: both by the monotonic clock."""
    start = time.monotonic()
    subprocess.run([program, "--steps", "1", "--trace", "trace"], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    with open(os.path.join(folder, "trace", "rank0_trace.json")) as f:
        events = json.load(f)["traceEvents"]
    return min(e["ts"] for e in events if e["name"] == "F") / 1e6 - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plc")
    parser.add_argument("--runs", type=int, default=10)
    a = parser.parse_args()
    plc, folder = os.path.abspath(a.plc), tempfile.mkdtemp(prefix="plan-bench-")
    b.say_machine()
    print("%-34s %9s %11s   (best of %d)" % ("command", "seconds", "processor", a.runs))
    for example in ("01-quickstart", "02-gpt2"):
        source = os.path.join(b.EXAMPLES, example + ".plan")
        print("%-34s %9.3f %11.3f" % ("plc check " + example, *b.best_of(a.runs, [plc, "check", source])))
        for plan in ("single", "replicas"):
            command = [plc, "build", source, "--plan", plan, "-o", os.path.join(folder, example + "-" + plan)]
            print("%-34s %9.3f %11.3f" % ("plc build %s %s" % (example, plan), *b.best_of(a.runs, command)))
    source = os.path.join(b.EXAMPLES, "02-gpt2.plan")
    print("LLVM loaded by check: %s; by build: %s" % tuple("yes" if llvm_loaded(plc, *words) else "no" for words in (
        ("check", source), ("build", source, "-o", os.path.join(folder, "x")))))
    # The example as it stands, but for saving: 124 million parameters, 1024 tokens.
    text = open(source).read().replace("save      every 1000", "#").replace("eval      every 250", "#")
    with open(os.path.join(folder, "first.plan"), "w") as f:
        f.write(text.replace("batch     8", "batch     2"))
    os.mkdir(os.path.join(folder, "corpus"))
    b.write_tokens(os.path.join(folder, "corpus", "random.bin"), 200000, 50257)
    subprocess.run([plc, "build", "first.plan", "-o", "first"], cwd=folder, check=True)
    print("first forward pass of 02-gpt2 starts after %.2f s (best of 3)" % min(first_forward(os.path.join(folder, "first"), folder) for _ in range(3)))
    shutil.rmtree(folder)


main()
