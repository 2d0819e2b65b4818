#!/usr/bin/env python3
"""Cases from the field that only a run decides: which samples a step sees, what the loss is divided by, what data and
checkpoints may hold. Test names begin with the cases of docs/field-cases.md.

usage: test_runs.py PLC [-v] [TEST...]
"""
import json, math, os, struct, sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "run"))
import plan_testing as t  # noqa: E402


def npy(values, descr, shape):
    code = {"<f4": "f", "<i4": "i", "<u2": "H", "|u1": "B", "<i2": "h"}[descr]
    head = "{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }" % (descr, ", ".join(map(str, shape)))
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%d%s" % (len(values), code), *values)


def llm_c(ids, wide=False):
    return struct.pack("<256i", 20240801 if wide else 20240520, 7 if wide else 1, len(ids), *[0] * 253) + struct.pack(
        "<%d%s" % (len(ids), "I" if wide else "H"), *ids)


class Case(t.Case):
    def write(self, name, content):
        with open(self.path(name), "wb" if isinstance(content, bytes) else "w") as f:
            f.write(content)

    def say(self, program, *options, status=0, env=None):
        """What a run says; it must end with `status`."""
        got, out, err = t.run([program, *options], cwd=self.dir, status=None, env=env)
        self.assertEqual(got, status, out + err)
        return out + err

    def describe(self, program):
        return json.loads(t.run([program, "--describe"]))


# ---- which samples -----------------------------------------------------------------------------------------------------

SPY = """
model Spy {
    dim row = 4
    input  value: float[batch]
    weight w: [row] = ones
    loss = value * mean(w, over row)
}
train {
    model     Spy
    data      arrays(value = "values.npy")
    batch     4
    steps     14
    optimizer sgd(lr = 1e-30)
    save      every 5 to "saved" keep 9
}
plan single { microbatch 2 }
plan two {
    mesh  data = 2
    batch on data
    microbatch 1
}
plan four {
    mesh  data = 4
    batch on data
}
"""


class Samples(Case):
    """Seven samples worth 1, 8, 64, ...: the digits of a step's loss in base 8 say how often each was in it."""

    N = 7

    def setUp(self):
        super().setUp()
        self.write("values.npy", npy([8.0 ** i for i in range(self.N)], "<f4", [self.N]))

    def counts(self, metric, batch=4):
        total = metric["loss"] * batch
        self.assertEqual(total, int(total), "the loss is the mean over the step's samples")
        digits = [int(total) // 8 ** i % 8 for i in range(self.N)]
        self.assertEqual(sum(digits), batch)
        return digits

    def test_n10_n40_c15_c17_d14_order(self):
        programs = {plan: self.build(SPY, plan, "--plan", plan) for plan in ("single", "two", "four")}
        whole = self.train(programs["single"], "single")
        seen, steps = [0] * self.N, []
        for k, metric in enumerate(whole):
            steps.append(self.counts(metric))
            seen = [a + b for a, b in zip(seen, steps[-1])]
            epoch = (k + 1) * 4 // self.N  # a step takes four, also across the end of an epoch: no short window
            self.assertTrue(all(epoch <= n <= epoch + 1 for n in seen), "step %d: %r" % (k + 1, seen))
            self.assertAlmostEqual(metric["grad_norm"], metric["loss"] / 2, delta=1e-6 * metric["loss"])  # a mean over ranks, no sum
        self.assertNotEqual(steps[:7], steps[7:], "four epochs in another order")
        facts = [(m["step"], m["loss"], m["grad_norm"]) for m in whole]
        for plan in ("two", "four"):
            self.assertEqual([(m["step"], m["loss"], m["grad_norm"]) for m in self.train(programs[plan], plan)], facts)
        # Stopped in the third epoch and in the sixth, each time resumed on another number of ranks.
        self.train(programs["two"], "parts", "--steps", "5")
        self.train(programs["four"], "parts", "--steps", "11", "--resume")
        self.train(programs["single"], "parts", "--resume")
        self.assertEqual([(m["step"], m["loss"], m["grad_norm"]) for m in self.metrics("parts")], facts)

    def test_c17_other_batch(self):
        four = self.build(SPY, "single", "--plan", "single")
        two = self.build(SPY[:SPY.index("plan two")], "half", "--set", "batch=2")
        whole = self.train(four, "whole", "--steps", "6")
        self.train(four, "parts", "--steps", "5")
        said = self.say(two, "--resume", self.path("parts-saved"), "--steps", "7", "--metrics", "half.jsonl", "--set", "save.path=half-saved")
        self.assertIn("the batch changes from 4 to 2 sequences; the data goes on at the same sample", said)
        halves = [self.counts(m, 2) for m in self.metrics("half")]
        self.assertEqual([a + b for a, b in zip(*halves)], self.counts(whole[5]))


# ---- what the loss is divided by ---------------------------------------------------------------------------------------

WEIGHTED = """
model Weighted {
    dim embed = 8, vocab = 16, seq = 10
    input  tokens: int[batch, seq]
    target labels: int[batch, seq]
    target counts: float[batch, seq]
    weight table:  [vocab, embed] = normal(1.0)
    weight output: [embed, vocab] = normal(1.0)
    logits = dot(lookup(table, tokens), output, over embed)
    loss   = cross_entropy(logits, labels, over vocab, weight = counts)
}
train {
    model     Weighted
    data      arrays(tokens = "tokens.npy", labels = "labels.npy", counts = "counts.npy")
    batch     8
    steps     1
    optimizer sgd(lr = 100)
    save      every 1 to "saved"
}
plan single { }
plan micro { microbatch 1 }
plan two {
    mesh  data = 2
    batch on data
    microbatch 2
}
plan eight {
    mesh  data = 8
    batch on data
}
plan stored {
    mesh data = 4, tensor = 2
    batch      on data
    weights    on data
    vocab, seq on tensor
    microbatch 1
}
plan context {
    mesh data = 2, context = 2
    batch on data
    seq   on context
    microbatch 1
}
"""


class Weights(Case):
    def expected(self, rows, weights):
        table, output = weights["table"][1], weights["output"][1]
        total = count = 0.0
        for tokens, labels, counts in rows:
            for token, label, weight in zip(tokens, labels, counts):
                logits = [sum(table[token * 8 + e] * output[e * 16 + v] for e in range(8)) for v in range(16)]
                top = max(logits)
                total += weight * (top + math.log(math.fsum(math.exp(x - top) for x in logits)) - logits[label])
                count += weight
        return total / count

    def test_n06_n07_unequal_counts(self):
        """Samples with 10 targets and with none: micro-batches and ranks weigh by their targets, not alike."""
        kept = (10, 0, 1, 7, 0, 0, 9, 3)
        rows = [([(7 * i + 3 * j * j) % 16 for j in range(10)], [(5 * i + j * (i + 2)) % 16 for j in range(10)],
                 [(0.5 if j == 4 else 1.0) * (j < kept[i]) for j in range(10)]) for i in range(8)]
        for k, (name, descr) in enumerate((("tokens", "<i4"), ("labels", "<i4"), ("counts", "<f4"))):
            self.write(name + ".npy", npy([x for row in rows for x in row[k]], descr, [8, 10]))
        first = None
        for plan in ("single", "micro", "two", "eight", "stored", "context"):
            program = self.build(WEIGHTED, plan, "--plan", plan)
            metric = self.train(program, plan)[0]
            after = t.read_tensors(os.path.join(self.checkpoint(plan, 1), "model.safetensors"))
            if first is None:
                self.train(program, "before", "--set", "lr=1e-30")
                before = t.read_tensors(os.path.join(self.checkpoint("before", 1), "model.safetensors"))
                first = metric, after, self.expected(rows, before)
            self.assertLess(t.relative(metric["loss"], first[2]), 2e-6, plan)
            self.assertLess(t.relative(metric["grad_norm"], first[0]["grad_norm"]), 1e-5, plan)
            for name in ("table", "output"):
                moved = t.distance(first[1][name][1], before[name][1])
                self.assertGreater(moved, 1)
                self.assertLess(t.distance(after[name][1], first[1][name][1]), 1e-5 * moved, "%s: gradient of `%s`" % (plan, name))


# ---- layouts -----------------------------------------------------------------------------------------------------------

LAYOUTS = os.path.join(HERE, "layouts.plan")


class Layouts(Case):
    def test_n25_c13_n28_n31_n33(self):
        plans = ("single", "zero3_of_three", "zero3_sequence")
        programs = {plan: self.build(LAYOUTS, plan, "--plan", plan) for plan in plans}
        # N25: the initial weights do not depend on the layout; C13: nor do names and shapes, with parts of nothing too.
        for plan in plans:
            self.train(programs[plan], plan + "-0", "--steps", "1", "--set", "lr=0", "--set", "lr.end=0")
        weights = [t.read_tensors(os.path.join(self.checkpoint(plan + "-0", 1), "model.safetensors")) for plan in plans]
        for plan, other in zip(plans[1:], weights[1:]):
            self.assertEqual(other.keys(), weights[0].keys())
            self.assertEqual([name for name in other if other[name] != weights[0][name]], [], plan)
        # N28: the rate counts optimizer steps: rises over 4, reaches its end at the last.
        whole = {plan: self.train(programs[plan], plan, "--set", "save.every=1000") for plan in plans}
        rates = [m["lr"] for m in whole["single"]]
        self.assertEqual([len(rates), rates[3], rates[7]], [8, 0.01, 0.001])
        self.assertAlmostEqual(rates[0], 0.0025, delta=1e-9)
        self.assertTrue(all(a < b for a, b in zip(rates[:3], rates[1:4])) and all(a > b for a, b in zip(rates[3:7], rates[4:])))
        for plan in plans[1:]:
            self.assertEqual([m["lr"] for m in whole[plan]], rates)
        # N31, C13: resumed under other layouts, in the middle of the schedule, it goes on as if nothing had been.
        self.train(programs["zero3_of_three"], "parts", "--steps", "3")
        self.train(programs["zero3_sequence"], "parts", "--steps", "6", "--resume")
        self.train(programs["single"], "parts", "--resume")
        self.assertEqual([m["lr"] for m in self.metrics("parts")], rates)
        self.assert_close([m["loss"] for m in self.metrics("parts")], [m["loss"] for m in whole["single"]], 1e-5, "losses of the parts")
        # N33: storage in parts mixes kinds of weights, decay does not.
        free = self.build(LAYOUTS, "free", "--plan", "zero3_of_three", "--set", "weight_decay=0")
        self.train(free, "free", "--steps", "1")
        self.train(programs["zero3_of_three"], "decayed", "--steps", "1")
        a, b = (t.read_tensors(os.path.join(self.checkpoint(name, 1), "model.safetensors")) for name in ("free", "decayed"))
        same = {name for name in a if a[name] == b[name]}
        norms = {name for name in a if name.endswith((".gain", ".bias"))}
        self.assertEqual(len(norms), 6)
        self.assertEqual(same, norms)

    def test_n03_n36_compare(self):
        """The command that tells a fault from rounding: first steps under two layouts, with the tolerance."""
        out = t.run([t.PLC, "compare", LAYOUTS, "--plans", "single,zero3_sequence", "--steps", "2"], cwd=self.dir)
        self.assertIn("the plans agree: rounding explains", out)


# ---- units and counts --------------------------------------------------------------------------------------------------

COUNTED = """
import nn
model Counted {
    dim layers = 3, embed = 8, head = 2, head_dim = 4, ffn = 16, vocab = 32, seq = 16
    input  tokens: int[batch, seq]
    target labels: int[batch, seq] = next(tokens)
    weight table: [vocab, embed] = normal(0.02)
    x = lookup(table, tokens)
    repeat layers {
        x = x + nn.attention(x, embed -> (head, head_dim), causal = true)
        x = x + nn.mlp(x, embed -> ffn)
    }
    loss = cross_entropy(dot(x, table, over embed), labels, over vocab)
}
train {
    model     Counted
    data      tokens("ids*.bin")
    batch     480
    steps     1
    optimizer sgd(lr = 0.1)
}
"""
RANKS = """
plan ranks {
    mesh  data = 8
    batch on data
    microbatch 12
}
"""
CONTEXT = """
plan context {
    mesh data = 2, context = 2
    batch on data
    seq   on context using gather
    microbatch 2
}
"""


class Counts(Case):
    def test_u11_u13_u18_u20(self):
        # U11: 12 sequences of 1024 on each of 8 ranks, 5 micro-batches: 12 * 1024 * 40 tokens a step.
        program = self.build(COUNTED + RANKS, "ranks", "--set", "seq=1024")
        facts = self.describe(program)
        self.assertEqual((facts["tokens_per_step"], facts["micros"], facts["micro_batch"]), (12 * 1024 * 40, 5, 96))
        self.write("ids.bin", llm_c([i % 32 for i in range(480 * 1024 + 1)]))
        out = self.say(program, "--dry-run")
        self.assertIn("8 ranks (data = 8)", out)
        self.assertIn("491,520 tokens = 96 sequences x 5 micro-batches x 1024 tokens", out)
        # U18: 6 flops for each weight of a product and token, 12 * layers * embed * seq for attention in full, lookups free.
        products = 3 * (4 * 8 * 8 + 2 * 8 * 16) + 8 * 32
        self.assertEqual(facts["flops_per_token"], 6 * products + 12 * 3 * 8 * 1024)
        # U20: started by a launcher that expects to make the ranks itself.
        for variables in ({"OMPI_COMM_WORLD_SIZE": "2"}, {"SLURM_STEP_NUM_TASKS": "8"}, {"WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}):
            out = self.say(program, "--dry-run", status=2, env=variables)
            self.assertIn("it starts the plan's 8 ranks itself", out)
            self.assertIn("start it once, as `%s`" % program, out)
        self.say(program, "--dry-run", env={"OMPI_COMM_WORLD_SIZE": "1", "WORLD_SIZE": "4"})
        # U13: ranks of one sequence are no data ranks: 4 sequences in a micro-batch, not 8.
        facts = self.describe(self.build(COUNTED + CONTEXT, "context", "--set", "batch=8"))
        self.assertEqual((facts["tokens_per_step"], facts["micros"], facts["micro_batch"]), (8 * 16, 2, 4))

    def test_u16_peaks_of_the_library(self):
        peaks = {line.split()[0]: line.split() for line in t.run([t.PLC, "gpus"]).splitlines() if line.strip()}
        self.assertIn("989.0", peaks["H100_SXM_80GB"])  # dense; 1979 is with 2:4 sparsity
        self.assertIn("312.0", peaks["A100_SXM_80GB"])


# ---- data --------------------------------------------------------------------------------------------------------------

IDS = """
model Ids {
    dim embed = 2, vocab = 16, seq = 8
    input  tokens: int[batch, seq]
    target labels: int[batch, seq] = next(tokens)
    weight table: [vocab, embed] = normal(0.02)
    loss = cross_entropy(dot(lookup(table, tokens), table, over embed), labels, over vocab)
}
train {
    model      Ids
    data       DATA
    VALIDATION
    batch      8
    steps      2
    optimizer  sgd(lr = 0.1)
    eval       every 1 on 1 batches
}
"""
EIGHT = """
plan eight {
    mesh  data = 8
    batch on data
    microbatch 4
}
"""


def ids_plan(data, validation="split 0.1", plan="plan single { }\n"):
    return IDS.replace("DATA", data).replace("VALIDATION", validation) + plan


class Data(Case):
    def test_d01_ids_cut_off(self):
        source = ids_plan('tokens("ids.bin")')
        program = self.build(source, "bert", "--set", "vocab=119547")
        for content, say in ((struct.pack("<900H", *range(900)), "16-bit ids, which end at 65535, but the vocabulary has 119547"),
                             (llm_c(list(range(900))), "16-bit ids"), (npy([1] * 900, "<i2", [900]), "16-bit ids, which end at 32767"),
                             (npy([1] * 900, "|u1", [900]), "8-bit ids, which end at 255")):
            self.write("ids.bin", content)
            self.assertIn(say, self.say(program, "--dry-run", status=1))
        self.write("ids.bin", llm_c(list(range(119547 - 900, 119547)), wide=True))
        self.say(program, "--dry-run")
        self.write("ids.bin", struct.pack("<900H", *range(65536 - 900, 65536)))
        self.say(self.build(source, "fits", "--set", "vocab=65536"), "--dry-run")

    def test_d10_one_id_too_many(self):
        program = self.build(ids_plan('tokens("ids.bin")'), "llama", "--set", "vocab=128256")
        ids = [128255] * 900
        self.write("ids.bin", llm_c(ids, wide=True))
        self.say(program, "--dry-run")
        ids[333] = 128256  # an added padding token
        self.write("ids.bin", llm_c(ids, wide=True))
        self.assertIn("`ids.bin` holds id 128256 at position 333 (byte 2356), but ids must be below 128256", self.say(program, "--dry-run", status=1))

    def test_s09_d10_n34_padded_vocabulary(self):
        """Padded columns are in no loss, no gradient, no checkpoint, and no id may name them."""
        plans = {"single": "plan single { microbatch 8 }\n",
                 "padded": "plan cut {\n    mesh tensor = 4\n    vocab padded on tensor\n    microbatch 8\n}\n"}
        save = '    save       every 1 to "saved"\n    eval'
        programs = {name: self.build(ids_plan('tokens("ids.bin")', plan=text).replace("    eval", save), name, "--set", "vocab=257")
                    for name, text in plans.items()}
        ids = [(i * i) % 257 for i in range(900)]
        self.write("ids.bin", llm_c(ids))
        metrics = {name: self.train(program, name, "--set", "lr=30") for name, program in programs.items()}
        self.assert_close([m["loss"] for m in metrics["padded"]], [m["loss"] for m in metrics["single"]], 1e-6, "loss")
        self.assert_close([m["grad_norm"] for m in metrics["padded"]], [m["grad_norm"] for m in metrics["single"]], 1e-5, "norm")
        self.assert_close([m["val_loss"] for m in metrics["padded"]], [m["val_loss"] for m in metrics["single"]], 1e-6, "validation")
        tables = [t.read_tensors(os.path.join(self.checkpoint(name, 2), "model.safetensors"))["table"] for name in programs]
        self.assertEqual([shape for shape, _ in tables], [[257, 2], [257, 2]])
        self.assertLess(t.distance(tables[0][1], tables[1][1]), 1e-5 * t.norm(tables[0][1]))
        self.train(programs["single"], "padded", "--steps", "3", "--resume")
        ids[5] = 257
        self.write("ids.bin", llm_c(ids))
        self.assertIn("holds id 257 at position 5", self.say(programs["padded"], "--dry-run", status=1))

    def test_d08_one_token_short(self):
        program = self.build(ids_plan('tokens("ids.bin")', 'validation tokens("val.bin")', EIGHT), "eight", "--set", "seq=1024", "--set", "batch=32")
        self.write("ids.bin", llm_c([i % 16 for i in range(40000)]))
        self.write("val.bin", llm_c([i % 16 for i in range(32768)]))
        out = self.say(program, "--dry-run", status=1)
        self.assertIn("the validation data has 32768 ids, but one micro-batch of evaluation needs 32769: 32 sequences of 1024, and one more", out)
        self.write("val.bin", llm_c([i % 16 for i in range(32769)]))
        self.say(program, "--dry-run")

    def test_d05_d06_nothing_in_it(self):
        program = self.build(ids_plan('tokens("ids*.bin")'), "empty")
        self.write("ids1.bin", llm_c([]))  # the first document is empty
        self.write("ids2.bin", b"")
        self.assertIn("is empty: 2 files hold nothing", self.say(program, status=1))
        self.write("ids3.bin", llm_c([1] * 64))  # seven whole sequences: one step needs eight
        self.assertIn("but one step needs 65", self.say(program, status=1))
        self.write("ids3.bin", llm_c([1] * 900))
        self.assertIn("2 empty files were passed over", self.say(program, "--dry-run"))
        os.unlink(self.path("ids1.bin"))
        self.write("ids1.bin", b"\x28\xb5\x2f\xfd" + bytes(5000))
        self.assertIn("zstd", self.say(program, status=1))

    def test_d12_d17_bytes_as_they_are(self):
        """Line ends, marks and encodings change no byte, and are reported."""
        program = self.build(ids_plan('text("t.txt")'), "text", "--set", "vocab=256")
        body = b"line of text\n" * 100
        losses = {}
        for name, content, say in (
                ("lf", body, []), ("crlf", body.replace(b"\n", b"\r\n"), ["100 lines end in CR LF; both bytes are kept"]),
                ("cr", body.replace(b"\n", b"\r"), []), ("last", body[:-1], []), ("mark", b"\xef\xbb\xbf" + body, ["1 files begin with a byte-order mark"]),
                ("latin", body + b"it\x92s", ["1 bytes are not UTF-8, the first in `t.txt` at byte 1302"]), ("nul", body + b"\0" * 9, []),
                ("surrogate", body + b"\xed\xa0\x80", ["3 bytes are not UTF-8, the first in `t.txt` at byte 1300"])):
            self.write("t.txt", content)
            out = self.say(program, "--steps", "1", "--metrics", "m.jsonl")
            for text in say:
                self.assertIn(text, out, name)
            if not say:
                self.assertNotIn("note:", out, name)
            losses[name] = self.metrics("m")[0]["loss"]
        self.assertNotEqual(losses["lf"], losses["cr"])


if __name__ == "__main__":
    t.main()
