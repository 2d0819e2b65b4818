"""Llama 3 405B of examples/large with other numbers of ranks, stages, layers and micro-batches, and what compiling each takes."""
import os, re, subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
PLAN = os.path.join(os.path.dirname(os.path.dirname(HERE)), "examples", "large", "llama3-405b.plan")
COUNTS = ("model_nodes", "role_nodes", "kernels", "buffers", "actions", "allocations", "allocated_bytes")  # --emit stats


def replaced(text, pattern, by):
    text, n = re.subn(pattern, by, text)
    assert n == 1, pattern
    return text


def variant(data=128, stages=16, layers=126, micros=16, recompute="full"):
    """The plan with as many layers in each of two chunks a stage; the last two chunks have what is left of 126."""
    with open(PLAN) as f:
        text = f.read()
    each = -(-layers // (2 * stages))
    parts = [each] * (2 * stages)
    for i in range(2 * stages * each - layers):
        parts[-1 - i] -= 1
    text = replaced(text, r"nodes 2048 of", "nodes %d of" % (data * stages))  # of 8 processors, which are `tensor`
    text = replaced(text, r"Llama3_405B\(", "Llama3_405B(layers = %d, " % layers)
    text = replaced(text, r"batch     2048", "batch     %d" % (data * micros))
    text = replaced(text, r"data = 128, pipe = 16", "data = %d, pipe = %d" % (data, stages))
    text = replaced(text, r"uneven\([^)]*\)", "uneven(%s)" % ", ".join(map(str, parts)))
    text = replaced(text, r"precision  bf16\n", "\n")  # with it, sums over 2 ranks and over 128 are cheapest at different places
    return replaced(text, r"recompute  full", "recompute  " + recompute if recompute else "")


def counts(plc, path, text):
    """{count: number} of compiling the plan, which is written to `path`."""
    with open(path, "w") as f:
        f.write(text)
    p = subprocess.run([plc, "build", path, "--emit", "stats"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        raise AssertionError(p.stderr[-3000:])
    return {name: int(number) for name, number in (line.split() for line in p.stdout.splitlines())}
