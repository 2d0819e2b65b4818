#!/usr/bin/env python3
"""`--numerics reproducible`: every plan of a file gives the bits of its plan `single`, by real processes.

usage: reproducible.py PLC FILE [--steps N] [PLAN[/THREADS]...]

For each plan (all of the file, with 1 thread and with 2, where none is named): builds it, trains, and compares with
`single` on one thread
  - the loss and the gradient norm of every step, as the numbers that the metrics file has;
  - every weight and moment of the last checkpoint, byte for byte.
A plan with a ring has no order that others have, nor have unequal parts of a dimension: they must be refused (P0634, P0635).
"""
import hashlib, json, os, re, shutil, subprocess, sys, tempfile

import programs

arguments = sys.argv[1:]
plc, source, wanted, steps = arguments[0], os.path.abspath(arguments[1]), arguments[2:], "20"
if wanted[:1] == ["--steps"]:
    steps, wanted = wanted[1], wanted[2:]
folder = tempfile.mkdtemp(prefix="plan-bits-")


def run(*argv):
    return programs.run(*argv, cwd=folder)


def train(plan, threads):
    program, metrics, saved = f"./{plan}", f"{plan}.jsonl", f"{plan}.save"
    if not os.path.exists(os.path.join(folder, program)):
        run(plc, "build", source, "--plan", plan, "--numerics", "reproducible", "-o", program)
    shutil.rmtree(os.path.join(folder, saved), ignore_errors=True)
    run(program, "--steps", steps, "--threads", threads, "--metrics", metrics, "--set", f"save.path={saved}",
        "--set", "save.every=0", "--log-every", "1000000")
    with open(os.path.join(folder, metrics)) as file:
        lines = [json.loads(line) for line in file]
    newest = sorted(os.listdir(os.path.join(folder, saved)))[-1]
    stored = {}
    for name in sorted(os.listdir(os.path.join(folder, saved, newest))):
        if name.endswith(".safetensors"):
            stored.update((key, data) for key, (_, data) in programs.tensors(os.path.join(folder, saved, newest, name)).items())
    return [(line["loss"], line["grad_norm"]) for line in lines], stored


def compare(name, one, other):
    for step, (a, b) in enumerate(zip(one[0], other[0])):
        assert a == b, f"{name}: step {step + 1}: loss and norm {b}, in `single` {a}"
    assert len(one[0]) == len(other[0]) and one[1].keys() == other[1].keys(), f"{name}: other steps or tensors"
    differ = [tensor for tensor in one[1] if one[1][tensor] != other[1][tensor]]
    for tensor in differ[:1]:
        a, b = programs.floats(one[1][tensor]), programs.floats(other[1][tensor])
        n = sum(x != y for x, y in zip(a, b))
        raise AssertionError(f"{name}: {len(differ)} of {len(one[1])} tensors differ, `{tensor}` in {n} of {len(a)} elements")
    print(f"{name}: same bits in {len(one[0])} steps and {len(one[1])} tensors", flush=True)


def refused(plan):
    done = subprocess.run([plc, "build", source, "--plan", plan, "--numerics", "reproducible", "-o", "./refused"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and re.search("P063[45]", done.stderr), f"{plan}: is not refused: {done.returncode} {done.stderr}"
    print(f"{plan}: refused, as it should be", flush=True)


text = open(source).read()
plans = re.findall(r"^plan (\w+)", text, re.M)
bodies = re.findall(r"^plan (\w+)[^{]*\{(.*?)^\}", text, re.M | re.S)
orderless = {plan for plan, body in bodies if "using ring" in body or re.search(r"(?<!layers) uneven\(", body)}
assert plans[0] == "single", "the file begins with `plan single`"
runs = [(word.split("/") + ["1"])[:2] for word in wanted] or [[plan, threads] for plan in plans for threads in "12"][1:]
failures = 0
try:
    single = train("single", "1")
    digest = hashlib.sha256(b"".join(single[1][name] for name in sorted(single[1]))).hexdigest()[:16]
    print(f"single: losses {single[0][0][0]} to {single[0][-1][0]}, weights and moments {digest}", flush=True)
    assert single[0][0] != single[0][-1] or steps == "1", "nothing was trained"
    for plan, threads in runs:
        try:
            if plan in orderless:
                refused(plan)
                continue
            compare(f"{plan}, {threads} threads" if threads != "1" else plan, single, train(plan, threads))
        except (AssertionError, SystemExit) as problem:
            failures += 1
            print(f"FAILED {problem}", flush=True)
finally:
    shutil.rmtree(folder)
print(f"{len(runs) - failures} passed, {failures} failed")
sys.exit(1 if failures else 0)
