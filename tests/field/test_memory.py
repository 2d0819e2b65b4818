#!/usr/bin/env python3
"""Cases from the field about memory: what the listing of `plc build --emit memory` says, in bytes that can be counted by hand.
Test names begin with the cases of docs/field-cases.md.

usage: test_memory.py PLC [-v] [TEST...]
"""
import json, os, re, sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "run"))
import plan_testing as t  # noqa: E402

LAYERS, EMBED, VOCAB, SEQ, FFN = 8, 32, 1000, 64, 128
MODEL = """import nn
GPU
model Small {
    dim layers = 8, embed = 32, head = 4, vocab = 1000, seq = 64, ffn = 128
    dim head_dim = embed / head
    input  tokens: int[batch, seq]
    target labels: int[batch, seq] = next(tokens)
    weight token_table: [vocab, embed] = normal(0.02)
    x = lookup(token_table, tokens)
    repeat layers {
        x = x + nn.attention(nn.layer_norm(x, embed), embed -> (head, head_dim), causal = true)
        x = x + nn.mlp(nn.layer_norm(x, embed), embed -> ffn, gelu)
    }
    loss = cross_entropy(dot(nn.layer_norm(x, embed), token_table, over embed), labels, over vocab)
}
train {
    model     Small
    data      text("*.txt")
    batch     32
    steps     10
    optimizer OPTIMIZER
    clip      1.0
}
PLANS
"""
ADAM = "adamw(lr = 0.001) { bias, norm: weight_decay = 0 }"
# each layer: four products of attention, two of the MLP, two norms; the table; the last norm
PARAMETERS = LAYERS * (4 * EMBED * EMBED + 2 * EMBED * FFN + 4 * EMBED) + VOCAB * EMBED + 2 * EMBED

LINE = re.compile(r"^ *(\d+) +(\d+) (\w+) +(\w+) +(always|\d+\.\.\d+) +(\S+)", re.M)
KIND = re.compile(r"^  (\w+) +(\d+)$", re.M)
PEAK = re.compile(r"^  peak of (\w+) +(\d+)$", re.M)


class Role:
    """One role's part of the listing."""

    def __init__(self, text):
        self.arena = int(re.search(r"arena (\d+) bytes", text).group(1))
        self.kinds = {kind: int(size) for kind, size in KIND.findall(text)}
        self.peaks = {entry: int(size) for entry, size in PEAK.findall(text)}
        self.buffers = [(int(size), kind, span) for _, size, _, kind, span, _ in LINE.findall(text)]


class Memory(t.Case):
    def source(self, rules, optimizer=ADAM, gpu="", head="plan p"):
        text = MODEL.replace("OPTIMIZER", optimizer).replace("GPU", gpu)
        path = self.path("case.plan")
        with open(path, "w") as f:
            f.write(text.replace("PLANS", "%s {\n    %s\n}\n" % (head, "\n    ".join(rules))))
        return path

    def roles(self, *rules, **how):
        text = t.run([t.PLC, "build", self.source(rules, **how), "--emit", "memory"])
        return [Role("role " + part) for part in re.split(r"^role ", text, flags=re.M)[1:]]

    def close(self, got, wanted, what):
        """Each buffer begins at a multiple of 64 bytes."""
        self.assertGreaterEqual(got, wanted, what)
        self.assertLessEqual(got, 1.01 * wanted + 4096, what)

    def test_m01_m03_m05_bytes_of_a_parameter(self):
        """fp32: 4 of the weight, 4 of its gradient, 8 of Adam's moments; in parts what is stored in parts."""
        for word, parts in (("", (1, 1, 1)), ("optimizer on data", (1, 1, 4)), ("gradients on data", (1, 4, 4)), ("weights on data", (4, 4, 4))):
            kinds = self.roles("mesh data = 4", "batch on data", word, "microbatch 4")[0].kinds
            for kind, bytes_each, n in zip(("weight", "gradient", "moment"), (4, 4, 8), parts):
                self.close(kinds[kind], bytes_each * PARAMETERS / n, "%s with %r" % (kind, word))

    def test_m07_more_parts_never_cost_more(self):
        arenas = [self.roles("mesh data = 4", "batch on data", word, "microbatch 4")[0].arena
                  for word in ("optimizer on data", "gradients on data", "weights on data")]
        self.assertEqual(arenas, sorted(arenas, reverse=True))

    def test_m08_activations_by_stage(self):
        """1F1B holds as many micro-batches as there are stages from here on, GPipe all."""
        def stages(schedule):
            return [role.kinds["activation"] for role in self.roles("mesh pipe = 4", "layers on pipe using " + schedule, "microbatch 4")]
        first, second, third, _ = stages("one_f_one_b")
        each = second - third
        self.assertGreater(each, 2 * 4 * SEQ * FFN * 4)  # at least what the two layers' MLPs keep
        self.assertEqual(stages("gpipe")[1], second + 5 * each)  # eight instead of three
        self.assertGreater(first, second)

    def test_m09_the_fullest_stage_is_named(self):
        rules = ("mesh pipe = 4", "layers uneven(1, 2, 2, 3) on pipe using gpipe", "microbatch 4")
        arenas = [role.arena for role in self.roles(*rules)]
        fullest, second = sorted(range(4), key=lambda i: -arenas[i])[:2]
        self.assertEqual(fullest, 3)
        between = (arenas[fullest] + arenas[second]) // 2
        gpu = "gpu Tiny {\n    memory %.6f MB\n}\ncluster four {\n    nodes 1 of 4 * Tiny\n}\n" % (between / 1e6)
        status, _, said = t.run([t.PLC, "check", self.source(rules, gpu=gpu, head="plan p on four")], status=None)
        self.assertEqual(status, 1, said)
        self.assertIn("P0601", said)
        self.assertIn("stage %d needs" % fullest, said)

    def test_m11_m12_logits(self):
        """One buffer, with its gradient in place, that dies within the micro-batch; cut with the vocabulary."""
        for rules, tokens, parts in ((["microbatch 2"], 2 * SEQ, 1), (["mesh tensor = 2", "vocab on tensor", "microbatch 2"], 2 * SEQ, 2)):
            role = self.roles(*rules)[0]
            size = tokens * VOCAB // parts * 4
            large = [span for bytes_, _, span in role.buffers if bytes_ == size]
            self.assertNotIn("always", large)
            lives = sorted(tuple(map(int, span.split(".."))) for span in large)
            self.assertEqual(len(lives), 2, rules)  # of training, and of evaluation
            self.assertLess(lives[0][1], lives[1][0])
            self.assertLess(lives[0][1] - lives[0][0], 40)

    def test_m14_layer_inputs(self):
        """With `recompute full` a layer keeps its input; what cuts the sequence cuts that."""
        for rules, parts in ((["recompute full", "microbatch 2"], 1),
                             (["mesh context = 2", "seq on context using gather", "recompute full", "microbatch 2"], 2)):
            kept = self.roles(*rules)[0].kinds["activation"]
            inputs = (LAYERS + 1) * 2 * SEQ * EMBED * 4 // parts
            self.assertGreaterEqual(kept, inputs)
            self.assertLess(kept, 1.5 * inputs + 2 * SEQ * VOCAB * 4 // parts)

    def test_m16_the_update_needs_no_copy(self):
        role = self.roles("microbatch 2")[0]
        kept = sum(size for size, _, span in role.buffers if span == "always")
        self.assertLess(role.peaks["update"] - kept, 0.05 * 4 * PARAMETERS)
        plain = self.roles("microbatch 2", optimizer="sgd(lr = 0.001)")[0]
        self.close(role.arena - plain.arena, 8 * PARAMETERS, "moments alone")

    def test_m23_what_each_word_makes_smaller(self):
        """Sharded weights leave activations as they are; recomputation and a cut sequence do not."""
        whole = self.roles("mesh data = 4", "batch on data", "microbatch 4")[0].kinds
        parts = self.roles("mesh data = 4", "batch on data", "weights on data", "microbatch 4")[0].kinds
        again = self.roles("mesh data = 4", "batch on data", "recompute full", "microbatch 4")[0].kinds
        cut = self.roles("mesh context = 4", "seq on context using gather", "microbatch 4")[0].kinds
        self.assertEqual(parts["activation"], whole["activation"])
        self.close(whole["weight"], 4 * parts["weight"] * 0.99, "weights in four parts")
        self.assertLess(again["activation"], 0.5 * whole["activation"])
        self.assertLess(cut["activation"], 0.5 * whole["activation"])

    def test_m18_m19_reading_and_saving_need_no_copy(self):
        """Each rank holds a quarter of a table of 25 MB: what it writes and reads goes through in pieces."""
        text = MODEL.replace("OPTIMIZER", ADAM).replace("GPU", "").replace("vocab = 1000", "vocab = 200000").replace("layers = 8", "layers = 1")
        text = text.replace("seq = 64", "seq = 8").replace("batch     32", "batch     4").replace('"*.txt"', '"/usr/share/common-licenses/*"')
        text = text.replace("    clip ", '    save      every 1 to "saved" keep 1\n    clip ')
        program = self.build(text.replace("PLANS", "plan p {\n mesh data = 4\n batch on data\n weights on data\n vocab on data\n microbatch 1\n}\n"), "p")
        arena = json.loads(t.run([program, "--describe"]))["roles"][0]["arena_bytes"]
        table = 200000 * EMBED * 4
        self.train(program, "first", "--steps", "2")
        self.train(program, "more", "--steps", "4", "--resume", self.path("first-saved"))
        for name, steps in (("first", [1, 2]), ("more", [3, 4])):
            metrics = self.metrics(name)
            self.assertEqual([m["step"] for m in metrics], steps)
            for m in metrics:
                self.assertLess(m["peak_bytes"], arena + 0.75 * table, name)


if __name__ == "__main__":
    t.main()
