#!/usr/bin/env python3
"""16 bits in a run: what stays in 32, what a checkpoint holds of the loss scale, and what a resumed run makes of it.
Test names begin with the cases of docs/field-cases.md that they show.

usage: test_precision.py PLC [-v] [TEST...]
"""
import json, os

import plan_testing as t

PLANS = os.path.join(t.ROOT, "tests", "ranks", "precision.plan")


class Precision(t.Case):
    def program(self, plan, *options):
        return self.build(PLANS, plan, "--plan", plan, *options)

    def optimizer(self, name, step):
        return t.read_tensors(os.path.join(self.checkpoint(name, step), "optimizer.safetensors"))

    def test_n21_m05_what_stays_in_32_bits(self):
        for plan in ("single_bf16", "zero2", "tensor4", "sequence_fp16"):
            (role, *_) = json.loads(t.run([self.program(plan), "--describe"]))["roles"]
            kinds = {tensor["class"] for tensor in role["tensors"]}
            self.assertLessEqual({"weight", "moment", "gradient"}, kinds)
            self.assertEqual({tensor["dtype"] for tensor in role["tensors"]}, {"f32"}, plan)
        # M05: four bytes for each element of a gradient, beside 16-bit activations that take half of fp32's.
        full, half = (json.loads(t.run([self.program(plan), "--describe"]))["roles"][0]["memory"] for plan in ("single", "single_bf16"))
        self.assertEqual(full["gradient"], half["gradient"])
        self.assertLess(half["activation"], 0.6 * full["activation"])

    def test_n22_small_updates_reach_the_weights(self):
        program = self.program("single_bf16")
        rate = ("--set", "lr=1e-6", "--set", "lr.end=1e-6", "--set", "lr.warmup=0")
        self.train(program, "before", "--steps", "1", "--set", "lr=0", "--set", "lr.end=0")
        self.train(program, "after", "--steps", "1", *rate)
        before, after = (t.read_tensors(os.path.join(self.checkpoint(name, 1), "model.safetensors")) for name in ("before", "after"))
        a, b = before["layers.mlp.up"][1], after["layers.mlp.up"][1]
        moved = sum(x != y for x, y in zip(a, b)) / len(a)
        self.assertGreater(moved, 0.9)  # in bf16 a step of 1e-6 rounds away from weights of 0.02

    def test_scale_is_resumed(self):
        one, many = self.program("single_scaled"), self.program("data_scaled")
        whole = self.train(one, "whole", "--set", "save.every=1000")
        self.train(one, "parts", "--steps", "3")
        state = self.optimizer("parts", 3)
        names = ["loss_scale.factor", "loss_scale.good_steps", "loss_scale.skipped"]
        self.assertEqual(sorted(name for name in state if name.startswith("loss_scale.")), names)
        factor, good, skipped = (state[name][1][0] for name in names)
        self.assertEqual(factor, 8388608 * 0.5 ** skipped)
        self.assertGreater(skipped, 0)
        self.train(many, "parts", "--steps", "9", "--resume")
        parts = self.train(one, "parts", "--resume")
        for name in ("loss_scale", "skipped_steps"):
            self.assertEqual([m[name] for m in self.metrics("parts")], [m[name] for m in whole], name)
        self.assert_close([m["loss"] for m in self.metrics("parts")], [m["loss"] for m in whole], 1e-4, "losses")
        self.assertGreater(max(m["loss_scale"] for m in whole[5:]), min(m["loss_scale"] for m in whole))  # it grew again

    def test_skipped_step_changes_nothing(self):
        program = self.program("single_scaled")
        self.train(program, "one", "--steps", "1")
        self.train(program, "none", "--steps", "1", "--set", "lr=0", "--set", "lr.end=0")
        for file in ("model.safetensors", "optimizer.safetensors"):
            one, none = (t.read_tensors(os.path.join(self.checkpoint(name, 1), file)) for name in ("one", "none"))
            self.assertEqual(one, none)
        moments = {name: values for name, (_, values) in self.optimizer("one", 1).items() if name.startswith("adam.")}
        self.assertTrue(moments and not any(any(values) for values in moments.values()))

    def test_other_precisions_take_the_checkpoint(self):
        self.train(self.program("single"), "full", "--steps", "2")
        scaled = self.train(self.program("single_fp16"), "full", "--steps", "4", "--resume")
        self.assertEqual(self.metrics("full")[-1]["loss_scale"], 65536)
        self.train(self.program("single_bf16"), "full", "--steps", "6", "--resume")
        self.assertEqual([m["step"] for m in self.metrics("full")], [1, 2, 3, 4, 5, 6])

    def test_a_scale_with_nothing_left_stops(self):
        text = t.read(PLANS).decode().replace("normal(0.02)", "normal(1e30)")
        with open(self.path("bad.plan"), "w") as file:
            file.write(text + "\nplan small_scale { precision fp16(scale = 2) }\n")
        program = self.build(self.path("bad.plan"), "bad", "--plan", "small_scale")
        status, out, err = t.run([program], cwd=self.dir, status=None)
        self.assertEqual(status, 1)
        self.assertIn("step 2: the loss is nan", err)


if __name__ == "__main__":
    t.main()
