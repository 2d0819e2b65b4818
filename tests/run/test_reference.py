#!/usr/bin/env python3
"""A small GPT-2 and a small Llama train like an independent implementation of them (tests/reference/make_reference.py).

usage: test_reference.py PLC [-v] [TEST...]
"""
import json, os, shutil

import plan_testing as t

FILES = {"gpt2": "gpt2-weights.safetensors", "llama": "llama-weights.safetensors"}
# The softmax over keys does not see what all keys have in common: the gradient is zero, and Adam turns the rounding
# that stands in its place into steps of the learning rate.
ZERO_GRADIENT = {"layers.attention.bk"}


class Reference(t.Case):
    def setUp(self):
        super().setUp()
        for name in ("tokens.bin", *FILES.values()):
            shutil.copy(os.path.join(t.REFERENCE, name), self.dir)

    def compare_tensor(self, what, got, expected, total, slack=1e-4):
        difference, size = t.distance(got, expected), t.norm(expected)
        self.assertLessEqual(difference, slack * size + 1e-7 * total, "%s: off by %.3g of %.3g" % (what, difference, size))

    def compare(self, model, plan):
        name = model + "-" + plan
        program = self.build(os.path.join(t.REFERENCE, model + ".plan"), name, "--plan", plan)
        metrics = self.train(program, name)
        with open(os.path.join(t.REFERENCE, model + "-expected.json")) as f:
            facts = json.load(f)
        self.assert_close([m["lr"] for m in metrics], facts["rates"], 1e-6, "learning rate")
        self.assert_close([m["loss"] for m in metrics], facts["losses"], 1e-5, "loss")
        self.assert_close([m["grad_norm"] for m in metrics], facts["grad_norms"], 1e-4, "norm of the gradient")
        expected = t.read_tensors(os.path.join(t.REFERENCE, model + "-expected.safetensors"))
        self.compare_gradients(name, facts, expected)
        self.compare_weights(name, model, expected)

    def compare_gradients(self, name, facts, expected):
        """Step 1 leaves m = (1 - beta1) g in the first moment, g after clipping."""
        moments = t.read_tensors(os.path.join(self.checkpoint(name, 1), "optimizer.safetensors"))
        total = facts["grad_norms"][0]
        clipped = min(1, facts["clip"] / total) if facts["clip"] else 1
        self.assertEqual({k for k in moments if k.startswith("adam.m.")}, {"adam.m." + k[5:] for k in expected if k.startswith("grad.")})
        for key, (shape, values) in expected.items():
            if not key.startswith("grad."):
                continue
            got_shape, m = moments["adam.m." + key[5:]]
            self.assertEqual(got_shape, shape, key)
            self.compare_tensor(key, [x / ((1 - facts["beta1"]) * clipped) for x in m], values, total)

    def compare_weights(self, name, model, expected):
        weights = t.read_tensors(os.path.join(self.checkpoint(name, 1), "model.safetensors"))
        before = t.read_tensors(os.path.join(t.REFERENCE, FILES[model]))
        self.assertEqual(set(weights), set(before))
        total = t.norm(x for key, (_, values) in expected.items() if key.startswith("after.") for x in values)
        for key, (shape, start) in before.items():
            if key in ZERO_GRADIENT:
                continue
            got, after = weights[key], expected["after." + key][1]
            self.assertEqual(got[0], shape, key)
            self.compare_tensor(key, got[1], after, total)
            # The step itself is a thousandth of the weights: compared alone, an error in it cannot hide behind them.
            self.compare_tensor("step of " + key, [a - b for a, b in zip(got[1], start)], [a - b for a, b in zip(after, start)], total, 1e-2)


for model in FILES:
    for plan in ("single", "micro", "replicas"):
        setattr(Reference, "test_%s_%s" % (model, plan), lambda self, model=model, plan=plan: self.compare(model, plan))

if __name__ == "__main__":
    t.main()
