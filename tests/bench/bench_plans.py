#!/usr/bin/env python3
"""GPT-2 on two ranks with a thread each beside one rank with two threads, and beside PyTorch's DistributedDataParallel, in turns.

usage: bench_plans.py PLC [--python PYTHON] [--plans data,tensor,sequence,pipe,ddp] [--rounds 5] [--steps 3] [--model gpt2] [--seq 128]

Each round trains the one rank, then the plan, at the same global batch, and gives the ratio of the medians of their steps; a plan's speed
is the median of the rounds' ratios. `sequence` is `tensor` with the sequence cut between the products. `ddp` sets the plan `data` beside two PyTorch processes over gloo and needs a PYTHON that has torch.
Limits: data 95 %, tensor 90 %, pipe 85 % of one rank; 1.3 times DDP. Exit status 1 when one is missed.
"""
import argparse, json, os, shutil, subprocess, sys, tempfile

import benching as b

#        layers embed heads vocab, layers of the two stages
MODELS = {"gpt2": (12, 768, 12, 50257, "9, 3"), "tiny": (6, 384, 6, 50257, "5, 1"), "quick": (4, 160, 4, 1024, "2, 2")}
LIMITS = {"data": 0.95, "tensor": 0.90, "sequence": 0.90, "pipe": 0.85, "ddp": 1.3}
BATCH = {"data": 4, "tensor": 4, "sequence": 4, "pipe": 16, "ddp": 4}
SCHEDULE = "zero_bubble"

PLAN = """import models.gpt2
train {
    model     gpt2.GPT2(layers = %d, embed = %d, head = %d, vocab = %d, seq = %d, positions = %d)
    data      tokens("random.bin")
    batch     %d
    steps     1000000
    optimizer adamw(lr = 0.0003, betas = (0.9, 0.95), weight_decay = 0.1) {
        bias, norm: weight_decay = 0
    }
    clip      1.0
    seed      1
}
plan single { microbatch 4 }
plan data {
    mesh data = 2
    batch     on data
    optimizer on data
    microbatch 2
}
plan tensor {
    mesh tensor = 2
    head, ffn, vocab padded on tensor
    microbatch 4
}
plan sequence {
    mesh tensor = 2
    head, ffn, vocab padded, seq on tensor
    microbatch 4
}
plan pipe {
    mesh pipe = 2
    layers uneven(%s) on pipe using %s
    microbatch 1
}
"""


class Program:
    """A built plan; it is started anew for every round."""

    def __init__(self, plc, folder, source, plan, threads):
        self.folder, self.threads, self.path = folder, threads, os.path.join(folder, "%s-%s" % (source, plan))
        b.timed([plc, "build", source + ".plan", "--plan", plan, "-o", self.path, "--threads", str(threads)], cwd=folder)

    def steps(self, n):
        """Seconds of n steps, after one that is not counted."""
        metrics = os.path.join(self.folder, "metrics.jsonl")
        b.timed([self.path, "--steps", str(n + 1), "--threads", str(self.threads), "--metrics", metrics], cwd=self.folder)
        with open(metrics) as f:
            return [json.loads(line)["step_ms"] / 1000 for line in f][1:]


class Ddp:
    def __init__(self, python, model, batch, seq):
        command = [python, os.path.join(b.HERE, "torch_step.py"), *map(str, (*model[:4], seq, batch, 1, 2))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.steps(1)

    def steps(self, n):
        self.process.stdin.write("%d\n" % (n + 1))
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())[1][1:]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(name, mine, other, a):
    """The median over the rounds of how many times faster `mine` is."""
    ratios = []
    for i in range(a.rounds):
        theirs, ours = b.median(other.steps(a.steps)), b.median(mine.steps(a.steps))
        ratios.append(theirs / ours)
        print("%-6s round %d: %.3f s beside %.3f s, %.0f %%" % (name, i + 1, ours, theirs, 100 * ratios[-1]), flush=True)
    result = b.median(ratios)
    print("%-6s median %.0f %%, limit %.0f %%%s" % (name, 100 * result, 100 * LIMITS[name], "" if result >= LIMITS[name] else "  MISSED"), flush=True)
    return result >= LIMITS[name]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plc")
    parser.add_argument("--python")
    parser.add_argument("--plans", default="data,tensor,sequence,pipe,ddp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--seq", type=int, default=128)
    a = parser.parse_args()
    plc, model, folder, good = os.path.abspath(a.plc), MODELS[a.model], tempfile.mkdtemp(prefix="plan-bench-"), True
    layers, embed, heads, vocab, stages = model
    b.write_tokens(os.path.join(folder, "random.bin"), 200000, vocab)
    b.say_machine()
    for name in a.plans.split(","):
        if name == "ddp" and not a.python:
            continue
        with open(os.path.join(folder, name + ".plan"), "w") as f:
            f.write(PLAN % (layers, embed, heads, vocab, a.seq, a.seq, BATCH[name], stages, SCHEDULE))
        mine = Program(plc, folder, name, "data" if name == "ddp" else name, 1)
        other = Ddp(a.python, model, BATCH[name], a.seq) if name == "ddp" else Program(plc, folder, name, "single", 2)
        good = compare(name, mine, other, a) and good
        if name == "ddp":
            other.close()
    shutil.rmtree(folder)
    return 0 if good else 1


sys.exit(main())
