#!/usr/bin/env python3
"""Collectives between processes of this machine: ours beside Open MPI and PyTorch's gloo, in turns, in one run.

usage: bench_collectives.py PLC [--python PYTHON] [--ranks 2,4,8] [--most 64M] [--rounds 5] [--seconds 0.1]

Ours is built from bench_collectives.c and the runtime beside PLC (bin/plc, lib/plan/libplan_rt.a); Open MPI with `mpicc`, when there is
one; gloo runs when PYTHON has torch. Each system has a process for each rank, which sleep while another is measured. A round asks
every system for one collective of one size, about SECONDS long; a ratio is the median of the rounds' ratios. Sizes are those of the
larger buffer of a rank. Exit status 1 when a target is missed: faster than each peer everywhere, and 4 times Open MPI's all-reduce
from 64 KB up.
"""
import argparse, math, os, shutil, subprocess, sys, tempfile

import benching as b

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


def size(text):
    return int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)


def size_text(n):
    return "%d MB" % (n >> 20) if n >= 1 << 20 else "%d KB" % (n >> 10)


class System:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, kind, size, rounds):
        self.process.stdin.write("%d %d %d\n" % (kind, size, rounds))
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a system ended before its answer: %s" % self.process.args)
        return float(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def build(plc, folder):
    """Commands that start each system, by name, from (ranks, most bytes)."""
    lib = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(plc))), "lib", "plan", "libplan_rt.a")
    runtime = os.path.join(b.ROOT, "runtime")
    ours, mpi = os.path.join(folder, "ours"), os.path.join(folder, "mpi")
    b.timed(["cc", "-O2", "-D_GNU_SOURCE", "-I" + runtime, "-I" + os.path.join(runtime, "include"), os.path.join(b.HERE, "bench_collectives.c"),
             lib, "-lcjson", "-lm", "-lpthread", "-o", ours])
    systems = {"ours": lambda n, most: [ours, str(n), str(most)]}
    if shutil.which("mpicc"):
        b.timed(["mpicc", "-O2", os.path.join(b.HERE, "bench_collectives_mpi.c"), "-o", mpi])
        systems["Open MPI"] = lambda n, most: ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle",
                                               "1" if n > os.cpu_count() else "0", "-np", str(n), mpi, str(most)]
    return systems


def compare(systems, kind, bytes, a):
    """Seconds of each system, and the ratios of the others to ours: medians over the rounds."""
    counts = {}
    for name, s in systems.items():
        once = s.ask(kind, bytes, 3)
        counts[name] = 3 if math.isnan(once) else max(3, min(2000, int(a.seconds / max(once, 1e-7))))
    rounds = [{name: s.ask(kind, bytes, counts[name]) for name, s in systems.items()} for _ in range(a.rounds)]
    seconds = {name: b.median([r[name] for r in rounds]) for name in systems}
    ratios = {name: b.median([r[name] / r["ours"] for r in rounds]) for name in systems if name != "ours"}
    return seconds, ratios


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plc")
    parser.add_argument("--python")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--most", type=size, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1)
    a = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="plan-bench-")
    commands = build(a.plc, folder)
    if a.python:
        commands["gloo"] = lambda n, most: [a.python, os.path.join(b.HERE, "gloo_collectives.py"), str(n), str(most)]
    b.say_machine()
    missed = 0
    for n in map(int, a.ranks.split(",")):
        systems = {name: System(command(n, a.most)) for name, command in commands.items()}
        for kind, name in enumerate(KINDS):
            for bytes in [x for x in (1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20, 64 << 20) if x <= a.most and name in a.kinds.split(",")]:
                seconds, ratios = compare(systems, kind, bytes, a)
                least = {peer: 4 if peer == "Open MPI" and kind == 0 and bytes >= 64 << 10 else 1 for peer in ratios}
                bad = [peer for peer in ratios if ratios[peer] < least[peer]]  # nan: the peer has no such collective
                missed += len(bad)
                print("%d ranks %-14s %6s  ours %10.1f us%s%s" % (n, name, size_text(bytes), seconds["ours"] * 1e6, "".join(
                    "  %s %10.1f us (%.1fx)" % (peer, seconds[peer] * 1e6, ratios[peer]) for peer in ratios),
                                                               "  MISSED: " + ", ".join(bad) if bad else ""), flush=True)
        for s in systems.values():
            s.close()
    shutil.rmtree(folder)
    print("every target is met" if missed == 0 else "%d targets are missed" % missed)
    return 1 if missed else 0


sys.exit(main())
