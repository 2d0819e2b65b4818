#!/usr/bin/env python3
"""`plc check` of Llama 3 405B on 16,384 GPUs: seconds, memory, and counts beside the same plan on 256 GPUs.

usage: bench_check.py PLC [--runs 10]

Limits: 150 ms and 300 MB, best of the runs, each a fresh process; counts (--emit stats) equal within 1 %. Beside it the time of a refusal
for memory, whose ways out are found by building them. Exit status 1 when a limit is exceeded.
"""
import argparse, os, subprocess, sys, tempfile, time

import benching as b

sys.path.insert(0, os.path.join(b.ROOT, "tests", "run"))
import scale_testing as scale

SECONDS, MEGABYTES, SHARE = 0.150, 300, 0.01


def check(plc, path):
    """(seconds, processor seconds, most megabytes) of one check, whatever it says."""
    start = time.perf_counter()
    p = subprocess.Popen([plc, "check", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, p.returncode


def best(plc, path, runs, status):
    results = [check(plc, path) for _ in range(runs)]
    assert all(r[3] == status for r in results), path
    return [min(r[k] for r in results) for k in range(3)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plc")
    parser.add_argument("--runs", type=int, default=10)
    a = parser.parse_args()
    plc = os.path.abspath(a.plc)
    b.say_machine()
    with tempfile.TemporaryDirectory(prefix="plan-bench-") as folder:
        path = os.path.join(folder, "refused.plan")
        with open(path, "w") as f:
            f.write(scale.variant(recompute=None))
        seconds, processor, megabytes = best(plc, scale.PLAN, a.runs, 0)
        print("plc check llama3-405b.plan: %.0f ms, processor %.0f ms, %.0f MB (best of %d)" % (seconds * 1e3, processor * 1e3, megabytes, a.runs))
        print("refused for memory, with its ways out: %.0f ms, processor %.0f ms, %.0f MB" % (*(x * 1e3 for x in best(plc, path, a.runs, 1)[:2]),
                                                                                             check(plc, path)[2]))
        many, few = (scale.counts(plc, os.path.join(folder, "counted.plan"), scale.variant(data=data)) for data in (128, 2))
    worst = 0
    for name in scale.COUNTS:
        worst = max(worst, abs(many[name] / few[name] - 1))
        print("%-16s %10d on %d GPUs, %10d on %d" % (name, many[name], many["ranks"], few[name], few["ranks"]))
    bad = [what for what, is_bad in (("seconds", seconds > SECONDS), ("memory", megabytes > MEGABYTES), ("counts", worst > SHARE)) if is_bad]
    print("over the limit: " + ", ".join(bad) if bad else "within the limits of %.0f ms, %d MB and %.0f %%" % (SECONDS * 1e3, MEGABYTES, SHARE * 100))
    return 1 if bad else 0


sys.exit(main())
