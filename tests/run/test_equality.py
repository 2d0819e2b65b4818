#!/usr/bin/env python3
"""The same training under every plan, and the same bits where nothing but the machine's parallelism changes.

The model and the training are those of examples/01-quickstart.plan; only steps are fewer.

usage: test_equality.py PLC [-v] [TEST...]
"""
import os, re, shutil, signal, subprocess, time

import plan_testing as t

STEPS = 50
PLANS = """
plan four {
    mesh  data = 4
    batch on data
    microbatch 2
}

plan micro {
    microbatch 4
}

plan nested {
    mesh  outer = 2, inner = 2
    batch on outer
    batch on inner
    microbatch 4
}
"""


def quickstart(dropout=None):
    """The example with further plans; with `dropout`, behind the embedding, attention and the MLP."""
    with open(os.path.join(t.EXAMPLES, "01-quickstart.plan")) as f:
        text = f.read() + PLANS
    if dropout is not None:
        text, n = re.subn(r"(    x = lookup\(.*\n)", r"\1    x = nn.dropout(x, %g)\n" % dropout, text)
        text, m = re.subn(r"causal = true\)", "causal = true, dropout = %g)" % dropout, text)
        text, k = re.subn(r"-> ffn, gelu\)", "-> ffn, gelu, dropout = %g)" % dropout, text)
        assert (n, m, k) == (1, 1, 1)
    return text


class Equality(t.Case):
    def losses(self, source, plan, steps=STEPS, name=None, options=()):
        name = name or plan
        return [m["loss"] for m in self.train(self.build(source, name, "--plan", plan), name, "--steps", str(steps), "--set", "eval.every=0", *options)]

    def test_replicas_equal_single(self):
        source = quickstart()
        single = self.losses(source, "single")
        self.assertLess(single[-1], single[0] - 2)
        self.assert_close(self.losses(source, "replicas"), single, 1e-5, "loss of replicas")

    def test_replicas_equal_single_with_dropout(self):
        source = quickstart(0.1)
        single = self.losses(source, "single")
        self.assert_close(self.losses(source, "replicas"), single, 1e-5, "loss of replicas with dropout")
        without = self.losses(quickstart(), "single", steps=1, name="without")
        self.assertGreater(t.relative(single[0], without[0]), 1e-5)

    def test_microbatches_and_meshes_are_equal(self):
        source, steps = quickstart(0.1), 10
        single = self.losses(source, "single", steps)
        for plan in ("micro", "four", "nested"):
            self.assert_close(self.losses(source, plan, steps), single, 1e-5, "loss of " + plan)

    def test_initial_weights_do_not_depend_on_the_plan(self):
        """With a learning rate of nothing, the checkpoint after step 1 holds the initial weights."""
        source, kept = quickstart(0.1), {}
        for plan in ("single", "replicas", "four"):
            program = self.build(source, plan, "--plan", plan)
            for threads in (1, 2):
                name = "%s-%d" % (plan, threads)
                self.train(program, name, "--steps", "1", "--threads", str(threads), "--set", "lr=0", "--set", "lr.end=0", "--set", "eval.every=0")
                kept[name] = self.saved_bytes(name, 1)[0]
        self.assertEqual([name for name in kept if kept[name] != kept["single-1"]], [])
        weights = t.read_tensors(os.path.join(self.checkpoint("single-1", 1), "model.safetensors"))
        table = weights["token_table"][1]
        self.assertAlmostEqual(t.norm(table) / len(table) ** 0.5, 0.02, delta=0.001)

    def test_experts_equal_single(self):
        """Every plan of the lesson on experts: alone over the data ranks, on an axis of their own, with tensor and ZeRO."""
        with open(os.path.join(t.EXAMPLES, "06-experts.plan")) as f:
            source = f.read()
        single = self.losses(source, "single", 20)
        self.assertLess(single[-1], single[0] - 1)
        for plan in ("experts", "own_axis", "mixed"):
            self.assert_close(self.losses(source, plan, 20), single, 1e-4, "loss of " + plan)

    def test_tasks_equal_single(self):
        """Each context trains on its own data set: another second one changes the loss."""
        with open(os.path.join(t.EXAMPLES, "07-tasks.plan")) as f:
            source = f.read()
        single = self.losses(source, "single", 20)
        for plan in ("contexts", "groups"):
            self.assert_close(self.losses(source, plan, 20), single, 1e-5, "loss of " + plan)
        other = source.replace("Apache", "LGPL")
        self.assertNotEqual(source, other)
        self.assertGreater(t.relative(self.losses(other, "contexts", 1, "other")[0], single[0]), 1e-5)

    def bits(self, program, name, *options):
        metrics = self.train(program, name, "--steps", "6", "--set", "save.every=3", "--set", "eval.every=3", "--set", "eval.batches=1", *options)
        facts = [(m["step"], m["loss"], m["grad_norm"], m["lr"], m.get("val_loss")) for m in metrics]
        return facts, [self.saved_bytes(name, step) for step in (3, 6)]

    def test_same_seed_same_bits(self):
        for plan in ("single", "replicas"):
            program = self.build(quickstart(0.1), plan, "--plan", plan)
            first = self.bits(program, plan + "-a")
            self.assertTrue(first == self.bits(program, plan + "-b"), plan)
            self.assertFalse(first == self.bits(program, plan + "-c", "--set", "seed=3"), plan)

    def test_threads_do_not_change_bits(self):
        for plan in ("single", "replicas"):
            program = self.build(quickstart(0.1), plan, "--plan", plan)
            one = self.bits(program, plan + "-1", "--threads", "1")
            for n in (2, 3):
                self.assertTrue(one == self.bits(program, "%s-%d" % (plan, n), "--threads", str(n)), "%s, %d threads" % (plan, n))


class Resume(t.Case):
    OPTIONS = ("--set", "eval.every=4", "--set", "eval.batches=1", "--set", "save.every=1000")

    def facts(self, name):
        return [(m["step"], m["loss"], m["grad_norm"], m["lr"], m.get("val_loss")) for m in self.metrics(name)]

    def test_stop_and_resume_same_bits(self):
        program = self.build(quickstart(0.1), "program", "--plan", "single")
        self.train(program, "whole", "--steps", "10", *self.OPTIONS)
        where = ["--metrics", self.path("parts.jsonl"), "--set", "save.path=" + self.path("parts-saved"), *self.OPTIONS]
        p = subprocess.Popen([program, "--steps", "10", *where], cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        end = time.time() + 120
        while time.time() < end and not (os.path.exists(self.path("parts.jsonl")) and len(self.metrics("parts")) >= 3):
            time.sleep(0.01)
        p.send_signal(signal.SIGTERM)
        out, _ = p.communicate(timeout=60)
        self.assertEqual(p.returncode, 75, out)
        stopped = len(self.metrics("parts"))
        self.assertTrue(3 <= stopped < 10, stopped)
        t.run([program, "--resume", "--steps", "10", *where], cwd=self.dir)
        # The step that is told to stop does not evaluate any more.
        without = lambda name: [fact[:-1] if fact[0] == stopped else fact for fact in self.facts(name)]
        self.assertEqual(without("parts"), without("whole"))
        self.assertTrue(self.saved_bytes("parts", 10) == self.saved_bytes("whole", 10))

    def test_resume_on_another_number_of_ranks(self):
        source = quickstart(0.1)
        single, replicas = (self.build(source, plan, "--plan", plan) for plan in ("single", "replicas"))
        whole = self.train(single, "whole", "--steps", "12", *self.OPTIONS)
        for first, second, name in ((single, replicas, "up"), (replicas, single, "down")):
            self.train(first, name, "--steps", "6", *self.OPTIONS)
            self.train(second, name, "--steps", "12", "--resume", *self.OPTIONS)
            self.assertEqual([m["step"] for m in self.metrics(name)], list(range(1, 13)))
            self.assert_close([m["loss"] for m in self.metrics(name)], [m["loss"] for m in whole], 1e-5, "loss, resumed " + name)


if __name__ == "__main__":
    t.main()
