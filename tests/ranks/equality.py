#!/usr/bin/env python3
"""Every plan of a file equals its plan `single`, by real processes.

usage: equality.py PLC FILE [--nudge AMOUNT] [PLAN...]

For each plan: builds it, trains, and compares with `single`
  - the loss of every step, within 1e-5 relative, dropout on, and the gradient norm within 1e-4;
  - what the model logs (shares of dropped tokens), within 1e-5;
  - each gradient of step 1, from the first moments m = (1 - beta1) g in the checkpoint: ||g - g'|| <= 2e-5 ||g'|| + 1e-7 ||all g'||;
  - the arena that the program maps: what the compiler said, byte for byte.
A plan with `precision bf16` is compared with `single`, which is fp32: losses and gradients are within 3 times the distance of the
file's first plan of that precision (one rank) from `single`. So for `fp16`; with a scale of its own it is compared with the first
plan that has the same, which skips the same steps.

Routing. Plans round differently, so a token whose k-th and (k+1)-th expert are nearly equal may be sent elsewhere under another
plan. Where the model has `nn.moe(..., report = true)`, it is built with a copy of the library whose `moe` also logs, for each step
  - picks_0, picks_1, ...: for each expert, the share of tokens that pick it, before drops;
  - near_ties: the share of tokens whose k-th and (k+1)-th probability are less than `GAP` apart.
Times the tokens of all layers these are counts. A pick that differs takes one from an expert and gives one to another, so half the
sum over experts of |picks - picks on one rank| is a lower bound of the picks that differ in a step (those that cancel out are not
seen). It may not exceed the near ties of that step on one rank, and both are printed. In a step whose picks differ the loss is
within 1e-4, the gradient norm within 1e-2, and a pick for each near tie may be dropped or not. One token that went elsewhere makes
Adam's next step another, and soon many picks differ that were no ties. So that later steps still compare like with like, the plan is then
resumed from the checkpoint that `single` writes after that step. `--nudge` shows that this finds something: in all plans but `single`
the probabilities that choose experts are moved by up to AMOUNT. Moved by less than half of `GAP`, only near ties change.
"""
import json, os, re, shutil, sys, tempfile

import programs

plc, source, wanted, nudge = sys.argv[1], os.path.abspath(sys.argv[2]), sys.argv[3:], 0
if wanted[:1] == ["--nudge"]:
    nudge, wanted = float(wanted[1]), wanted[2:]
folder = tempfile.mkdtemp(prefix="plan-ranks-")
NN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "stdlib", "nn.plan")
GAP = "1e-5"        # of two probabilities that are nearly equal
# tolerances of the loss and of the gradient norm: of a step, and of one in which a pick differs
SAME_ROUTES, OTHER_ROUTES = (1e-5, 1e-4), (1e-4, 1e-2)
# Inside `if report` of nn.moe. An expert is picked when fewer than k others are better.
WATCH = """
        dim rival = like choice
        seen      = stop_gradient(best)
        other     = broadcast(rename(seen, choice -> rival), dims = (batch, seq, choice, rival))
        better    = sum(select(other > seen, 1.0, 0.0), over rival)
        picked    = better < k
        last_in   = -max_over(select(picked, -seen, -1e9), over choice)
        first_out = max_over(select(picked, -1e9, seen), over choice)
        near_ties = select(last_in - first_out < GAP, 1.0, 0.0)
        log near_ties
"""


def run(*argv):
    return programs.run(*argv, cwd=folder)


def size(name):
    """Of a dimension, or of the batch, as the file says it."""
    return int(re.search(rf"\b{name}(?: = | +)([0-9]+)\b", text).group(1))


def change_library(path, line, text):
    """Writes nn.plan of the file that is built, from `path`: `text` in place of `line`."""
    with open(path) as file:
        before, found, after = file.read().partition(line)
    assert found, f"nn.moe has no `{line.strip()}` any more"
    with open(os.path.join(folder, "nn.plan"), "w") as file:
        file.write(before + text + after)


def watch_routes():
    """Puts the file beside a library whose `moe` logs its choices, and builds that instead; tokens of all layers in a step."""
    global source
    experts, lines = size("expert"), WATCH.replace("GAP", GAP)
    for expert in range(experts):
        only = ", ".join("1.0" if other == expert else "0.0" for other in range(experts))
        lines += f"        picks_{expert} = sum(select(picked, [{only}] along choice, 0.0), over choice)\n        log picks_{expert}\n"
    change_library(NN, "        log dropped\n", "        log dropped\n" + lines)
    source = shutil.copy(source, folder)
    return size("layers") * size("seq") * size("batch")


def nudge_routes():
    """From now on the library chooses by probabilities that are a little off: less, the same, more, by turns of the experts."""
    off = ", ".join(str(nudge * (expert % 3 - 1)) for expert in range(size("expert")))
    change_library(os.path.join(folder, "nn.plan"), "        best = p\n", f"        best = stop_gradient(p + [{off}] along choice)\n")


def differing_picks(a, b):
    """Of a step: a lower bound of the picks that differ, and the near ties of `a`."""
    moved = sum(abs(round(tokens * a[name]) - round(tokens * b[name])) for name in a if name.startswith("picks_"))
    return moved / 2, round(tokens * a.get("near_ties", 0))


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
    stored = programs.tensors(os.path.join(folder, saved, checkpoint, "optimizer.safetensors"))
    moments = {name: programs.floats(data) for name, (dtype, data) in stored.items() if dtype == "F32"}
    run(program, "--metrics", metrics, "--set", f"save.path={saved}", "--set", "save.every=0", "--log-every", "1000000")
    with open(os.path.join(folder, metrics)) as file:
        steps = [json.loads(line) for line in file]
    return steps, {k: v for k, v in moments.items() if k.startswith("adam.m.")}


def resumed(plan, step):
    """The steps after `step`, from the weights that `single` has then."""
    saved, metrics = f"single.{step}.save", f"{plan}.{step}.jsonl"
    quiet = ("--set", "save.every=0", "--log-every", "1000000")
    run("./single", "--steps", str(step), "--set", f"save.path={saved}", *quiet)
    run(f"./{plan}", "--resume", saved, "--metrics", metrics, "--set", f"save.path={plan}.save", *quiet)
    with open(os.path.join(folder, metrics)) as file:
        return [json.loads(line) for line in file]


def compare_step(plan, a, b):
    """Of a step on one rank and under a plan: the deviation of the loss, differing picks, near ties."""
    where = f"{plan}: step {a['step']}"
    assert a["step"] == b["step"] and a.keys() == b.keys(), f"{where}: other metrics"
    differing, ties = differing_picks(a, b)
    assert differing <= ties, f"{where}: {differing:g} picks differ, {ties} near ties"
    off = abs(a["loss"] - b["loss"]) / abs(a["loss"])
    loss_tolerance, norm_tolerance = OTHER_ROUTES if differing else SAME_ROUTES
    assert off <= loss_tolerance, f"{where}: loss {b['loss']}, {a['loss']} on one rank"
    moved = ties / tokens if differing else 0
    for name in a.keys() - {"loss", "grad_norm", "step_ms", "tokens_per_second", "peak_bytes", "near_ties"}:  # what the model logs
        if not name.startswith("picks_"):
            assert abs(a[name] - b[name]) <= 1e-5 * abs(a[name]) + 1e-7 + moved, f"{where}: {name} {b[name]}, {a[name]} on one rank"
    assert abs(a["grad_norm"] - b["grad_norm"]) <= norm_tolerance * a["grad_norm"], f"{where}: grad_norm {b['grad_norm']}, {a['grad_norm']}"
    return off, differing, ties


def compare(plan, one, many):
    (steps, gradients), (other_steps, other_gradients) = one, many
    assert len(steps) == len(other_steps), f"{plan}: {len(other_steps)} steps"
    worst, all_differing, all_ties, others = 0, 0, 0, iter(other_steps)
    for a in steps:
        off, differing, ties = compare_step(plan, a, next(others))
        worst, all_differing, all_ties = max(worst, off), all_differing + differing, all_ties + ties
        if differing and a is not steps[-1]:
            others = iter(resumed(plan, a["step"]))
    assert gradients.keys() == other_gradients.keys(), f"{plan}: other tensors in the checkpoint"
    everything = sum(norm(v) ** 2 for v in gradients.values()) ** 0.5
    for name, a in gradients.items():
        off = norm([x - y for x, y in zip(a, other_gradients[name])])
        assert off <= 2e-5 * norm(a) + 1e-7 * everything, f"{plan}: gradient of {name[7:]}: off by {off:.3g} of {norm(a):.3g}"
    routing = f", {all_differing:g} picks differ, {all_ties} near ties" if tokens else ""
    print(f"{plan}: loss within {worst:.1e}{routing}", flush=True)


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
tokens = watch_routes() if re.search(r"nn\.moe\([^#]*?report = true", text) else 0
try:
    single = train("single")
    if nudge:
        nudge_routes()
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
