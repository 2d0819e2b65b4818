#!/usr/bin/env python3
"""The same bits: run twice, with any number of threads, stopped and resumed. And resumed on another number of ranks.

The model and the training are those of examples/01-quickstart.plan, with dropout.

usage: test_bits.py PLC [-v] [TEST...]
"""
import os, signal, subprocess, time

import plan_testing as t


class Bits(t.Case):
    def bits(self, program, name, *options):
        metrics = self.train(program, name, "--steps", "6", "--set", "save.every=3", "--set", "eval.every=3", "--set", "eval.batches=1", *options)
        facts = [(m["step"], m["loss"], m["grad_norm"], m["lr"], m.get("val_loss")) for m in metrics]
        return facts, [self.saved_bytes(name, step) for step in (3, 6)]

    def test_same_seed_same_bits(self):
        for plan in ("single", "replicas"):
            program = self.build(t.quickstart(0.1), plan, "--plan", plan)
            first = self.bits(program, plan + "-a")
            self.assertTrue(first == self.bits(program, plan + "-b"), plan)
            self.assertFalse(first == self.bits(program, plan + "-c", "--set", "seed=3"), plan)

    def test_threads_do_not_change_bits(self):
        for plan in ("single", "replicas"):
            program = self.build(t.quickstart(0.1), plan, "--plan", plan)
            one = self.bits(program, plan + "-1", "--threads", "1")
            for n in (2, 3):
                self.assertTrue(one == self.bits(program, "%s-%d" % (plan, n), "--threads", str(n)), "%s, %d threads" % (plan, n))


class Resume(t.Case):
    OPTIONS = ("--set", "eval.every=4", "--set", "eval.batches=1", "--set", "save.every=1000")

    def facts(self, name):
        return [(m["step"], m["loss"], m["grad_norm"], m["lr"], m.get("val_loss")) for m in self.metrics(name)]

    def test_stop_and_resume_same_bits(self):
        program = self.build(t.quickstart(0.1), "program", "--plan", "single")
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
        source = t.quickstart(0.1)
        single, replicas = (self.build(source, plan, "--plan", plan) for plan in ("single", "replicas"))
        whole = self.train(single, "whole", "--steps", "12", *self.OPTIONS)
        for first, second, name in ((single, replicas, "up"), (replicas, single, "down")):
            self.train(first, name, "--steps", "6", *self.OPTIONS)
            self.train(second, name, "--steps", "12", "--resume", *self.OPTIONS)
            self.assertEqual([m["step"] for m in self.metrics(name)], list(range(1, 13)))
            self.assert_close([m["loss"] for m in self.metrics(name)], [m["loss"] for m in whole], 1e-5, "loss, resumed " + name)

    def test_resume_with_the_sequence_cut(self):
        """A weight for each position, saved in two pieces a rank, and read in one or in others."""
        source = os.path.join(t.ROOT, "tests", "ranks", "context.plan")
        programs = {plan: self.build(source, plan, "--plan", plan) for plan in ("single", "ring", "ring3")}
        options = ("--set", "save.every=3", "--set", "eval.every=3", "--log-every", "1000000")
        whole = self.train(programs["single"], "whole", "--steps", "6", *options)
        for first, second in (("single", "ring"), ("ring", "ring3"), ("ring3", "single")):
            name = f"{first}_{second}"
            self.train(programs[first], name, "--steps", "3", *options)
            self.train(programs[second], name, "--steps", "6", "--resume", *options)
            self.assertEqual([m["step"] for m in self.metrics(name)], list(range(1, 7)))
            for what in ("loss", "val_loss"):
                got, expected = ([m[what] for m in metrics if m.get(what) is not None] for metrics in (self.metrics(name), whole))
                self.assert_close(got, expected, 1e-5, f"{what}, resumed {name}")
            self.assertEqual(len(got), 2)


if __name__ == "__main__":
    t.main()
