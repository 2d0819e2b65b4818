"""What the run tests share: building plans, running programs, reading what they leave. Python's standard library alone.

A test file ends with `plan_testing.main()`; it is called as `test_X.py PLC [-v] [TEST...]`.
"""
import array, json, math, os, re, shutil, struct, subprocess, sys, tempfile, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
REFERENCE = os.path.join(ROOT, "tests", "reference")
EXAMPLES = os.path.join(ROOT, "examples")
PLC, WORK = "", ""


def run(command, cwd=None, status=0, timeout=600, env=None):
    """Standard output; fails with everything that was said when the status is another."""
    p = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, text=True,
                       errors="replace", env={**os.environ, **(env or {})})
    if status is not None and p.returncode != status:
        raise AssertionError("%s: status %d, not %d\n%s%s" % (" ".join(command), p.returncode, status, p.stdout[-3000:], p.stderr[-3000:]))
    return p.stdout if status is not None else (p.returncode, p.stdout, p.stderr)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def read_tensors(path):
    """{name: (shape, floats)} of a safetensors file."""
    raw = read(path)
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = array.array("f")
        values.frombytes(raw[8 + n + begin:8 + n + end])
        out[name] = (entry["shape"], values)
    return out


def norm(values):
    return math.sqrt(math.fsum(x * x for x in values))


def distance(a, b):
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b)))


def relative(a, b):
    return abs(a - b) / max(abs(b), 1e-300)


# ---- the quick start, with more plans ----

QUICKSTART_PLANS = """
plan four {
    mesh  data = 4
    batch on data
    microbatch 1
}

plan micro {
    microbatch 2
}

plan whole {
    microbatch 8
}

plan full {
    microbatch 8
    recompute full
}

plan parts {
    microbatch 8
    recompute attention, mlp
}

plan longer {
    mesh  tensor = 3
    vocab padded, ffn padded on tensor
    microbatch 8
}

plan stored {
    mesh  data = 2, tensor = 3
    batch on data
    weights on data
    vocab padded on tensor
    microbatch 4
}

plan nested {
    mesh  outer = 2, inner = 2
    batch on outer
    batch on inner
    microbatch 2
}
"""


def quickstart(dropout=None):
    """The example with further plans; with `dropout`, behind the embedding, attention and the MLP."""
    with open(os.path.join(EXAMPLES, "01-quickstart.plan")) as f:
        text = f.read() + QUICKSTART_PLANS
    if dropout is not None:
        text, n = re.subn(r"(    x = lookup\(.*\n)", r"\1    x = nn.dropout(x, %g)\n" % dropout, text)
        text, m = re.subn(r"causal = true\)", "causal = true, dropout = %g)" % dropout, text)
        text, k = re.subn(r"-> ffn, gelu\)", "-> ffn, gelu, dropout = %g)" % dropout, text)
        assert (n, m, k) == (1, 1, 1)
    return text


class Case(unittest.TestCase):
    """Each test has a folder of its own; programs run in it."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=WORK)

    def tearDown(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def build(self, source, name, *options, status=0):
        """`source`: the path of a .plan file, or its text. The program's path."""
        if "\n" in source:
            text, source = source, self.path(name + ".plan")
            with open(source, "w") as f:
                f.write(text)
        run([PLC, "build", source, "-o", self.path(name), *options], cwd=self.dir, status=status)
        return self.path(name)

    def train(self, program, name, *options, status=0):
        """Metrics of a run that saves to the folder NAME-saved."""
        run([program, "--metrics", self.path(name + ".jsonl"), "--set", "save.path=" + self.path(name + "-saved"), *options], cwd=self.dir,
            status=status)
        return self.metrics(name)

    def metrics(self, name):
        with open(self.path(name + ".jsonl")) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]

    def checkpoint(self, name, step):
        return self.path(name + "-saved", "step-%08d" % step)

    def saved_bytes(self, name, step):
        return [read(os.path.join(self.checkpoint(name, step), f)) for f in ("model.safetensors", "optimizer.safetensors")]

    def assert_close(self, got, expected, tolerance, what):
        self.assertEqual(len(got), len(expected), what)
        worst = max((relative(a, b), i) for i, (a, b) in enumerate(zip(got, expected)))
        self.assertLessEqual(worst[0], tolerance, "%s: at %d: %r, expected %r" % (what, worst[1] + 1, got[worst[1]], expected[worst[1]]))
        return worst[0]


def main():
    global PLC, WORK
    if len(sys.argv) < 2 or not os.path.exists(sys.argv[1]):
        sys.exit("usage: %s PLC [-v] [TEST...]" % sys.argv[0])
    PLC, WORK = os.path.abspath(sys.argv[1]), tempfile.mkdtemp(prefix="plan-test-")
    try:
        unittest.main(module="__main__", argv=[sys.argv[0], *sys.argv[2:]])
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
