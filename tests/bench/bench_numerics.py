#!/usr/bin/env python3
"""What `--numerics reproducible` costs: step time beside the ordinary mode, in turns, and the memory of a rank.

usage: bench_numerics.py PLC [FILE PLAN] [--rounds N] [--steps N] [--set NAME=VALUE]...

Without FILE: the quick start's plans `single` and `replicas`. One thread a rank; the median of a run's steps, and the
median of the ratios of the rounds.
"""
import argparse, json, os, shutil, statistics, subprocess, tempfile

parser = argparse.ArgumentParser()
parser.add_argument("plc")
parser.add_argument("file", nargs="?", default=os.path.join(os.path.dirname(__file__), "../../examples/01-quickstart.plan"))
parser.add_argument("plan", nargs="?")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--set", action="append", default=[])
options = parser.parse_args()
folder = tempfile.mkdtemp(prefix="plan-numerics-")
MODES = ("fast", "reproducible")


def run(*argv):
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def step_ms(program):
    run(program, "--steps", str(options.steps), "--threads", "1", "--metrics", f"{program}.jsonl", "--log-every", "1000000",
        "--set", "save.every=0", "--set", "eval.every=0", "--set", f"save.path={program}.save")
    with open(os.path.join(folder, f"{program}.jsonl")) as file:
        return statistics.median(json.loads(line)["step_ms"] for line in list(file)[1:])


def measure(plan):
    arena = {}
    for mode in MODES:
        settings = [word for value in options.set for word in ("--set", value)]
        run(options.plc, "build", os.path.abspath(options.file), "--plan", plan, "--numerics", mode, "-o", f"./{mode}", *settings)
        arena[mode] = max(role["arena_bytes"] for role in json.loads(run(f"./{mode}", "--describe"))["roles"])
    rounds = [[step_ms(f"./{mode}") for mode in MODES] for _ in range(options.rounds)]
    ratios = sorted(slow / fast for fast, slow in rounds)
    print(f"{plan}: reproducible / fast {statistics.median(ratios):.2f} (rounds {', '.join(f'{r:.2f}' for r in ratios)}), "
          f"fast {statistics.median(fast for fast, _ in rounds):.0f} ms a step, "
          f"arena {arena['reproducible'] / arena['fast']:.2f} times {arena['fast'] / 2**20:.1f} MiB", flush=True)


try:
    for name in [options.plan] if options.plan else ["single", "replicas"]:
        measure(name)
finally:
    shutil.rmtree(folder)
