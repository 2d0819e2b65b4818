#!/usr/bin/env python3
"""The step is generated from a table of actions that can be edited, and its code does not grow with the model's depth.

usage: test_schedule.py PLC [-v] [TEST...]
"""
import os, re

import plan_testing as t

TEXT = """import models.gpt2

train {
    model     gpt2.GPT2(layers = 2, embed = 32, head = 4, vocab = 256, seq = 32, positions = 32, dropout = 0.1)
    data      text("/usr/share/common-licenses/*")
    batch     8
    steps     12
    optimizer adamw(lr = 0.003)
    save      every 100 to "checkpoints"
    seed      5
}

plan single {
    microbatch 2
}
"""
ORDER = "0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3"
NUMBER = re.compile(r"(?<![\w.%@!#])-?(?:0x[0-9A-F]+|\d+(?:\.\d+(?:e[+-]?\d+)?)?)\b")


class Schedule(t.Case):
    def setUp(self):
        super().setUp()
        self.source = self.path("s.plan")
        with open(self.source, "w") as f:
            f.write(TEXT)
        self.table = t.run([t.PLC, "build", self.source, "--emit", "schedule"])

    def edited(self, name, order):
        self.assertIn(ORDER, self.table)
        with open(self.path(name), "w") as f:
            f.write(self.table.replace(ORDER, order))
        return self.path(name)

    def kinds(self, *options):
        text = t.run([t.PLC, "build", self.source, "--emit", "memory", *options])
        return {kind: int(size) for kind, size in re.findall(r"^  (\w+) +(\d+)$", text, re.M)}

    def losses(self, name, *options):
        return [(m["loss"], m["grad_norm"]) for m in self.train(self.build(self.source, name, *options), name)]

    def test_read_back_unchanged(self):
        file = self.edited("same.schedule", ORDER)
        self.assertEqual(t.run([t.PLC, "build", self.source, "--emit", "schedule", "--schedule", file]), self.table)
        self.assertEqual(self.kinds("--schedule", file), self.kinds())

    def test_two_actions_swapped(self):
        file = self.edited("swapped.schedule", "0F0 0F1 0B0 0B1 0F2 0B2 0F3 0B3")
        first, second = self.kinds(), self.kinds("--schedule", file)
        self.assertGreater(second["activation"], 1.3 * first["activation"])
        for kind in ("weight", "gradient", "moment"):
            self.assertEqual(second[kind], first[kind])
        self.assertEqual(self.losses("swapped", "--schedule", file), self.losses("plain"))
        actions = re.findall(r'"kind":"(\w+)","chunk":0,"micro":(-?\d+)', t.run([self.path("swapped"), "--describe"]))
        self.assertEqual([k + m for k, m in actions][1:5], ["F0", "F1", "B0", "B1"])

    def test_all_forward_first(self):
        file = self.edited("gpipe.schedule", "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3")
        self.assertGreater(self.kinds("--schedule", file)["activation"], 2.5 * self.kinds()["activation"])
        # Gradients are added up in the same order.
        self.assertEqual(self.losses("gpipe", "--schedule", file), self.losses("plain"))

    def test_backward_in_another_order(self):
        file = self.edited("turned.schedule", "0F0 0F1 0F2 0F3 0B3 0B2 0B1 0B0")
        plain, turned = self.losses("plain"), self.losses("turned", "--schedule", file)
        for a, b in zip(zip(*turned), zip(*plain)):
            self.assert_close(a, b, 1e-4, "turned order")

    def refused(self, name, order, expected):
        file = self.edited(name, order)
        status, out, err = t.run([t.PLC, "build", self.source, "-o", self.path(name + ".out"), "--schedule", file], status=None)
        self.assertEqual(status, 1, out + err)
        self.assertRegex(err, r"error\[P07\d\d\]")
        self.assertIn(expected, err)
        self.assertFalse(os.path.exists(self.path(name + ".out")))

    def test_refusals(self):
        self.refused("early", "0B0 0F0 0F1 0B1 0F2 0B2 0F3 0B3", "`0B0`")
        self.refused("missing", "0F0 0B0 0F1 0B1 0F2 0B2 0F3", "micro-batch 3 of chunk 0 has no backward pass")
        self.refused("twice", "0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3 0B3", "0B3")
        self.refused("unknown", "0F0 0B0 0F1 0B1 0F2 0B2 0Q3 0B3", "0Q3")


class Depth(t.Case):
    def code(self, layers):
        """The module without the description and with all numbers made equal."""
        text = t.run([t.PLC, "build", os.path.join(t.EXAMPLES, "02-gpt2.plan"), "--plan", "single", "--set", "layers=%d" % layers, "--emit", "llvm"])
        lines = [line for line in text.split("\n") if not line.startswith("@plan_program")]
        return lines, [NUMBER.sub("N", line) for line in lines]

    def test_twelve_and_a_hundred_and_twenty_layers(self):
        (twelve, shape), (more, other) = self.code(12), self.code(120)
        self.assertGreater(len(shape), 5000)
        self.assertEqual(len(shape), len(other))
        self.assertEqual([(a, b) for a, b in zip(shape, other) if a != b][:5], [])
        self.assertNotEqual(twelve, more)


if __name__ == "__main__":
    t.main()
