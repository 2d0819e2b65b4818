#!/usr/bin/env python3
"""The same orders as bench_collectives.c for torch.distributed over gloo. usage: gloo_collectives.py RANKS MOST_BYTES"""
import datetime, os, sys, time
import torch, torch.distributed as dist
import torch.multiprocessing as mp


def collective(kind, x, out, whole, part):
    if kind == 0:
        dist.all_reduce(x[:whole])
    elif kind == 1:
        dist.all_gather(list(out[:whole].chunk(dist.get_world_size())), x[:part])
    elif kind == 2:
        dist.reduce_scatter_tensor(out[:part], x[:whole])
    else:
        dist.all_to_all_single(out[:whole], x[:whole])


def rank_main(rank, n, most, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=n, timeout=datetime.timedelta(hours=2))
    x, out = torch.zeros(most // 4), torch.zeros(most // 4)
    lines = open(0, closefd=False) if rank == 0 else None
    while True:
        line = lines.readline() if rank == 0 else ""
        order = torch.tensor([int(word) for word in line.split()] if line else [0, 0, 0])
        dist.broadcast(order, 0)
        kind, size, rounds = order.tolist()
        if rounds == 0:
            return
        part = size // 4 // n
        seconds = []
        for i in range(-2, rounds):
            dist.barrier()
            start = time.perf_counter()
            try:
                collective(kind, x, out, part * n, part)
            except RuntimeError:  # this version has no such collective
                seconds.append(float("nan"))
                break
            slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if i >= 0:
                seconds.append(slowest.item())
        if rank == 0:
            print("%.9f" % sorted(seconds)[len(seconds) // 2], flush=True)


if __name__ == "__main__":
    n, most = int(sys.argv[1]), int(sys.argv[2])
    port = 20000 + os.getpid() % 20000
    context = mp.get_context("fork")
    others = [context.Process(target=rank_main, args=(r, n, most, port)) for r in range(1, n)]
    for p in others:
        p.start()
    rank_main(0, n, most, port)
    for p in others:
        p.join()
