#!/usr/bin/env python3
"""The peer of bench_step.py and bench_plans.py: the same GPT-2 in PyTorch, eager, fp32, fused attention and fused AdamW where it has them.

Reads numbers of steps from standard input, and answers each with the seconds of those steps, as one JSON list a line.
usage: torch_step.py LAYERS EMBED HEADS VOCAB SEQ BATCH THREADS [RANKS]
THREADS are those of a rank, BATCH is that of all ranks; more than one run under DistributedDataParallel over gloo.
"""
import json, os, sys, time
import torch
from torch import nn
import torch.distributed as dist
import torch.nn.functional as F

layers, embed, heads, vocab, seq, batch, threads, ranks = map(int, (sys.argv[1:9] + ["1"])[:8])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(embed), nn.LayerNorm(embed)
        self.qkv, self.out = nn.Linear(embed, 3 * embed), nn.Linear(embed, embed)
        self.up, self.down = nn.Linear(embed, 4 * embed), nn.Linear(4 * embed, embed)

    def forward(self, x):
        q, k, v = (z.unflatten(-1, (heads, -1)).transpose(1, 2) for z in self.qkv(self.before_attention(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(vocab, embed), nn.Embedding(seq, embed)
        self.layers, self.last = nn.Sequential(*(Layer() for _ in range(layers))), nn.LayerNorm(embed)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        return F.linear(self.last(self.layers(self.table(ids) + self.places.weight)), self.table.weight)


def make_optimizer(model):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    try:
        return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95))


def next_count(rank):
    """Steps to make; 0 at the end. All ranks get it from the first one."""
    line = sys.stdin.readline() if rank == 0 else ""
    count = torch.tensor([int(line) if line else 0])
    if ranks > 1:
        dist.broadcast(count, 0)
    return int(count)


def train(rank):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = Model()
    if ranks > 1:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%s" % os.environ["PORT"], rank=rank, world_size=ranks)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = make_optimizer(model)
    while count := next_count(rank):
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            ids = torch.randint(0, vocab, (batch // ranks, seq + 1))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seconds.append(time.perf_counter() - start)
        if rank == 0:
            print(json.dumps([torch.__version__, seconds]), flush=True)


os.environ["PORT"] = str(20000 + os.getpid() % 20000)
children = []
for r in range(1, ranks):
    pid = os.fork()
    if pid == 0:
        train(r)
        os._exit(0)
    children.append(pid)
train(0)
for pid in children:
    os.waitpid(pid, 0)
