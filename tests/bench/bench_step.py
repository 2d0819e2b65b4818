#!/usr/bin/env python3
"""A training step of a compiled program beside PyTorch's eager step of the same model, in turns: A B A B.

usage: bench_step.py PLC --python PYTHON [--model tiny|quick|gpt2] [--rounds 4] [--steps 6] [--threads 2]

PYTHON is an interpreter that has torch (tests/reference/requirements.txt). Each round runs our program, then the peer,
and gives the median of their steps; the ratios of the rounds are what counts, since a disturbance hits both.
"""
import argparse, json, os, shutil, subprocess, tempfile

import benching as b

#        layers embed heads vocab seq batch
MODELS = {"tiny": (6, 384, 6, 65, 256, 12), "quick": (4, 160, 5, 256, 128, 16), "gpt2": (12, 768, 12, 50257, 256, 4)}

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
plan single {
    microbatch %d
}
"""


def ours(program, folder, steps, threads):
    """Seconds of the steps after the first two."""
    subprocess.run([program, "--steps", str(steps + 2), "--threads", str(threads), "--metrics", "metrics.jsonl"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        return [json.loads(line)["step_ms"] / 1000 for line in f][2:]


def ask(peer, steps):
    peer.stdin.write("%d\n" % steps)
    peer.stdin.flush()
    return json.loads(peer.stdout.readline())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plc")
    parser.add_argument("--python", required=True)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    layers, embed, heads, vocab, seq, batch = MODELS[a.model]
    folder = tempfile.mkdtemp(prefix="plan-bench-")
    with open(os.path.join(folder, "step.plan"), "w") as f:
        f.write(PLAN % (layers, embed, heads, vocab, seq, seq, batch, batch))
    b.write_tokens(os.path.join(folder, "random.bin"), 500000, vocab)
    b.timed([os.path.abspath(a.plc), "build", "step.plan", "-o", "step", "--threads", str(a.threads)], cwd=folder)
    peer = subprocess.Popen([a.python, os.path.join(b.HERE, "torch_step.py"), *map(str, (layers, embed, heads, vocab, seq, batch, a.threads))],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    version = ask(peer, 2)[0]
    b.say_machine()
    print("%s: %d layers of %d, vocabulary %d, %d x %d tokens, %d threads; PyTorch %s, eager" % (a.model, layers, embed, vocab, batch, seq,
                                                                                             a.threads, version))
    ratios = []
    for i in range(a.rounds):
        mine, theirs = b.median(ours(os.path.join(folder, "step"), folder, a.steps, a.threads)), b.median(ask(peer, a.steps)[1])
        ratios.append(mine / theirs)
        print("round %d: ours %.4f s, PyTorch %.4f s, ratio %.2f" % (i + 1, mine, theirs, ratios[-1]))
    print("median ratio %.2f (ours / PyTorch: below 1 is faster)" % b.median(ratios))
    peer.stdin.close()
    peer.wait()
    shutil.rmtree(folder)


main()
