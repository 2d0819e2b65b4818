#!/usr/bin/env python3
"""Every plan of a file equals its plan `single`, by real processes.

usage: equality.py PLC FILE [--loss TOLERANCE] [PLAN...]

For each plan: builds it, trains, and compares with `single`
  - the loss of every step, within 1e-5 relative (or TOLERANCE), dropout on, and the gradient norm within 1e-4;
  - what the model logs (shares of dropped tokens), within 1e-5;
  - each gradient of step 1, from the first moments m = (1 - beta1) g in the checkpoint: ||g - g'|| <= 2e-5 ||g'|| + 1e-7 ||all g'||;
  - the arena that the program maps: what the compiler said, byte for byte.
A plan with `precision bf16` is compared with `single`, which is fp32: losses and gradients are within 3 times the distance of the
file's first plan of that precision (one rank) from `single`. So for `fp16`; with a scale of its own it is compared with the first
plan that has the same, which skips the same steps.
"""
import json, os, re, shutil, struct, subprocess, sys, tempfile

plc, source, wanted, loss_tolerance = sys.argv[1], os.path.abspath(sys.argv[2]), sys.argv[3:], 1e-5
if wanted[:1] == ["--loss"]:
    loss_tolerance, wanted = float(wanted[1]), wanted[2:]
folder = tempfile.mkdtemp(prefix="plan-ranks-")


def run(*argv):
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def tensors(path):
    with open(path, "rb") as file:
        n = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(n))
        body = file.read()
    header.pop("__metadata__", None)
    return {k: struct.unpack(f"<{(v['data_offsets'][1] - v['data_offsets'][0]) // 4}f", body[slice(*v["data_offsets"])])
            for k, v in header.items() if v["dtype"] == "F32"}


def norm(values):
    return sum(v * v for v in values) ** 0.5


def train(plan):
    program, metrics, saved = f"./{plan}", f"{plan}.jsonl", f"{plan}.save"
    run(plc, "build", source, "--plan", plan, "-o", program)
    predicted = [int(line.split()[3]) for line in run(plc, "build", source, "--plan", plan, "--emit", "memory").splitlines()
                 if re.match(r"role \d+: arena", line)]
    described = [role["arena_bytes"] for role in json.loads(run(program, "--describe"))["roles"]]
    assert predicted == described, (plan, predicted, described)
    run(program, "--steps", "1", "--set", f"save.path={saved}", "--log-every", "1000000")
    checkpoint = sorted(os.listdir(os.path.join(folder, saved)))[-1]
    moments = tensors(os.path.join(folder, saved, checkpoint, "optimizer.safetensors"))
    run(program, "--metrics", metrics, "--set", f"save.path={saved}", "--set", "save.every=0", "--log-every", "1000000")
    with open(os.path.join(folder, metrics)) as file:
        steps = [json.loads(line) for line in file]
    os.remove(os.path.join(folder, plan))
    return steps, {k: v for k, v in moments.items() if k.startswith("adam.m.")}


def compare(plan, one, many):
    (steps, gradients), (other_steps, other_gradients) = one, many
    assert len(steps) == len(other_steps), f"{plan}: {len(other_steps)} steps"
    worst = 0
    for a, b in zip(steps, other_steps):
        off = abs(a["loss"] - b["loss"]) / abs(a["loss"])
        worst = max(worst, off)
        assert off <= loss_tolerance, f"{plan}: step {a['step']}: loss {b['loss']}, {a['loss']} on one rank"
        assert a.keys() == b.keys(), f"{plan}: step {a['step']}: other metrics"
        for name in a.keys() - {"loss", "grad_norm", "step_ms", "tokens_per_second", "peak_bytes"}: # what the model logs
            assert abs(a[name] - b[name]) <= 1e-5 * abs(a[name]) + 1e-7, f"{plan}: step {a['step']}: {name} {b[name]}, {a[name]} on one rank"
        assert abs(a["grad_norm"] - b["grad_norm"]) <= 1e-4 * a["grad_norm"], f"{plan}: step {a['step']}: grad_norm {b['grad_norm']}, {a['grad_norm']}"
    assert gradients.keys() == other_gradients.keys(), f"{plan}: other tensors in the checkpoint"
    everything = sum(norm(v) ** 2 for v in gradients.values()) ** 0.5
    for name, a in gradients.items():
        off = norm([x - y for x, y in zip(a, other_gradients[name])])
        assert off <= 2e-5 * norm(a) + 1e-7 * everything, f"{plan}: gradient of {name[7:]}: off by {off:.3g} of {norm(a):.3g}"
    print(f"{plan}: loss within {worst:.1e}", flush=True)


def distance(a, b):
    return norm([x - y for x, y in zip(a, b)])


def compare_narrow(plan, centre, full, one, many):
    """In 16 bits: as far from `centre` as one rank in 16 bits, `one`, is from one rank in fp32, `full`, three times that allowed."""
    (steps, gradients), (one_steps, one_gradients) = full, one
    (centre_steps, centre_gradients), (other_steps, other_gradients) = centre, many
    assert len(steps) == len(other_steps), f"{plan}: {len(other_steps)} steps"
    allowed = 3 * max(abs(a["loss"] - b["loss"]) for a, b in zip(steps, one_steps))
    worst = max(abs(a["loss"] - b["loss"]) for a, b in zip(centre_steps, other_steps))
    assert worst <= allowed, f"{plan}: a loss is off by {worst:.3g}, allowed {allowed:.3g}"
    everything = sum(norm(v) ** 2 for v in gradients.values()) ** 0.5
    for name, a in gradients.items():
        off, rounding = distance(centre_gradients[name], other_gradients[name]), distance(a, one_gradients[name])
        assert off <= 3 * rounding + 1e-6 * everything, f"{plan}: gradient of {name[7:]}: off by {off:.3g} of {norm(a):.3g}, one rank by {rounding:.3g}"
    for a, b in zip(centre_steps, other_steps):  # the loss scale, where both have one
        for name in ("loss_scale", "skipped_steps"):
            if name in a and name in b:
                assert a[name] == b[name], f"{plan}: step {a['step']}: {name} {b[name]}, {a[name]} on one rank"
    print(f"{plan}: losses within {worst:.1e}, allowed {allowed:.1e}", flush=True)


text = open(source).read()
plans = re.findall(r"^plan (\w+)", text, re.M)
blocks = dict(re.findall(r"^plan (\w+)[^{]*\{(.*?)\}", text, re.M | re.S))
precision = {plan: (re.findall(r"precision +(\w+.*?)\s*$", blocks[plan], re.M) or ["fp32"])[0] for plan in plans}


def first_of(word):
    return next(plan for plan in plans if precision[plan] == word)


assert plans[0] == "single" and len(plans) > 1, "the file begins with `plan single`"
failures = 0
try:
    single = train("single")
    narrow = {}  # plan on one rank -> what it gives
    for plan in wanted or plans[1:]:
        try:
            if precision[plan] == "fp32":
                compare(plan, single, train(plan))
                continue
            same, plain = first_of(precision[plan]), first_of(precision[plan].split("(")[0])
            for each in (same, plain):
                if each not in narrow:
                    narrow[each] = train(each)
            centre = narrow[same] if same != plain else single
            compare_narrow(plan, centre, single, narrow[plain], narrow[plan] if plan in narrow else train(plan))
        except (AssertionError, SystemExit) as problem:
            failures += 1
            print(f"FAILED {problem}", flush=True)
finally:
    shutil.rmtree(folder)
print(f"{len(wanted or plans[1:]) - failures} passed, {failures} failed")
sys.exit(1 if failures else 0)
