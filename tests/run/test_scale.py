#!/usr/bin/env python3
"""What compiling costs grows with the number of different roles and actions, not with ranks or layers. Counted, not timed.

usage: test_scale.py PLC [-v] [TEST...]
"""
import os, subprocess

import plan_testing as t
import scale_testing as scale


class Scale(t.Case):
    def counts(self, **how):
        return scale.counts(t.PLC, self.path("scale.plan"), scale.variant(**how))

    def assert_equal_within(self, share, a, b, names=scale.COUNTS):
        for name in names:
            self.assertLessEqual(abs(a[name] - b[name]), share * b[name], "%s: %d and %d" % (name, a[name], b[name]))

    def test_ranks_cost_nothing(self):
        many, few = self.counts(), self.counts(data=2)
        self.assertEqual((many["ranks"], few["ranks"]), (16384, 256))
        self.assert_equal_within(0.01, many, few)

    def test_layers_cost_nothing(self):
        self.assert_equal_within(0.01, self.counts(layers=126), self.counts(layers=32))

    def test_stages_cost_the_same_each(self):
        four, eight, sixteen = (self.counts(data=2, stages=n, layers=4 * n) for n in (4, 8, 16))
        for name in ("role_nodes", "kernels", "buffers", "allocations", "allocated_bytes"):
            first, second = (eight[name] - four[name]) / 4, (sixteen[name] - eight[name]) / 8
            self.assertLessEqual(second, 1.1 * first, "%s for a stage: %.0f from 4 to 8, %.0f from 8 to 16" % (name, first, second))

    def test_micro_batches_cost_their_actions(self):
        few, many = self.counts(stages=4, layers=16), self.counts(stages=4, layers=16, micros=256)
        self.assertEqual(few["kernels"], many["kernels"])
        self.assertEqual(few["role_nodes"], many["role_nodes"])
        actions = many["actions"] - few["actions"]
        self.assertLessEqual(actions, 4 * 2 * 6 * 240)  # stages, chunks, passes with their transfers, more micro-batches
        self.assertLessEqual(many["allocated_bytes"] - few["allocated_bytes"], 200 * actions)

    def test_a_refusal_keeps_nothing_of_what_it_tries(self):
        """Its ways out are found by building them, one after the other."""
        with open(self.path("scale.plan"), "w") as f:
            f.write(scale.variant(recompute=None))
        p = subprocess.Popen([t.PLC, "check", self.path("scale.plan")], stderr=subprocess.PIPE, text=True)
        with p.stderr:
            said = p.stderr.read()
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(p.returncode, 1)
        self.assertIn("error[P0601]", said)
        self.assertIn("`recompute full` saves", said)
        self.assertLessEqual(usage.ru_maxrss, 300 * 1024)


if __name__ == "__main__":
    t.main()
