#!/usr/bin/env python3
"""Pipelines by real processes: schedules from tables, what `plc explain` says of them, and training that stops under a pipeline and goes on
under another plan, and back.

usage: test_pipeline.py PLC [-v] [TEST...]
"""
import os, re, shutil

import plan_testing as t

SOURCE = os.path.join(t.ROOT, "tests", "ranks", "pipeline.plan")
OTHERS = """
plan data2 {
    mesh  data = 2
    batch on data
    microbatch 2
}
plan tensor2 {
    mesh  tensor = 2
    head, ffn, vocab, seq on tensor
    microbatch 2
}
"""


class Tables(t.Case):
    def emit(self, plan, stage, *options):
        return t.run([t.PLC, "build", SOURCE, "--plan", plan, "--emit", stage, *options])

    def test_pytorch_tables_are_read_as_they_are_printed(self):
        for plan in ("zero_bubble4", "interleaved2", "gpipe2", "one_f_one_b4"):
            table = self.path(plan + ".csv")
            with open(table, "w") as f:
                f.write(self.emit(plan, "schedule=pytorch"))
            again = self.emit(plan, "schedule", "--schedule", table)
            self.assertEqual(again.split("\n", 1)[1], self.emit(plan, "schedule").split("\n", 1)[1], plan)

    def test_the_table_is_found_beside_the_plan(self):
        self.assertIn("schedule table roles 4 chunks 1 micros 8\n", self.emit("table4", "schedule"))
        os.makedirs(self.path("away"))
        shutil.copy(SOURCE, self.path("away", "p.plan"))
        status, _, err = t.run([t.PLC, "build", self.path("away", "p.plan"), "--plan", "table4", "--emit", "schedule"], status=None)
        self.assertEqual(status, 1)
        self.assertIn("away/pipeline.csv` cannot be read", err)


class Explain(t.Case):
    def test_stages_transfers_and_picture(self):
        text = t.run([t.PLC, "explain", SOURCE, "--plan", "zero_bubble4"])
        self.assertIn("    stage 0   F0 F1 F2 F3 .. .. .. I0 W0 F4 I1 W1", text)
        self.assertIn("    idle: 11.1 % of the step\n", text)  # 3 / (3 x 8 + 3)
        self.assertEqual(re.findall(r"memory of a rank of stage (\d)", text), list("0123"))
        # a micro-batch of 1 x 32 positions x 32 numbers, handed on by three stages; the table's gradient goes home once
        self.assertRegex(text, r"pipeline.plan:15 .*\n +send +over pipe +4.0 KiB x 8 +in SEND_F `x` from stages 0 to 1 each to 1 stage on\n")
        self.assertRegex(text, r"pipeline.plan:12 .*\n +send +over pipe +32.0 KiB x 1 +in update `token_table` from stage 0 to stage 3\n"
                               r" +send +over pipe +32.0 KiB x 1 +in update `grad.token_table` from stage 3 to stage 0\n")
        self.assertEqual(re.findall(r"a rank of stage (\d) sends ([\d.]+ KiB)", text),
                         [("0", "64.0 KiB"), ("1", "64.0 KiB"), ("2", "64.0 KiB"), ("3", "64.0 KiB")])


class Resume(t.Case):
    """Stops after 8 steps, goes on under another plan to step 16, and back to 20: the losses of one plan that never stops."""

    def test_from_pipes_to_other_plans_and_back(self):
        with open(SOURCE) as f:
            text = f.read() + OTHERS
        shutil.copy(os.path.join(os.path.dirname(SOURCE), "pipeline.csv"), self.dir)
        programs = {plan: self.build(text, plan, "--plan", plan)
                    for plan in ("single", "zero_bubble4", "interleaved2", "zero3_interleaved", "data2", "tensor2")}
        whole = [m["loss"] for m in self.train(programs["single"], "whole")]
        for way in (("zero_bubble4", "data2", "interleaved2"), ("interleaved2", "tensor2", "zero_bubble4"),
                    ("zero3_interleaved", "single", "zero_bubble4"), ("single", "zero3_interleaved", "data2")):
            name, losses = "-".join(way), []
            for plan, end in zip(way, (8, 16, 20)):
                metrics = self.train(programs[plan], name, "--steps", str(end), *(["--resume"] if losses else []))
                losses += [m["loss"] for m in metrics if m["step"] > len(losses)]
            self.assert_close(losses, whole, 1e-5, "loss, " + name)
            self.assertEqual({k: shape for k, (shape, _) in t.read_tensors(os.path.join(self.checkpoint(name, 20), "model.safetensors")).items()},
                             {k: shape for k, (shape, _) in t.read_tensors(os.path.join(self.checkpoint("whole", 20), "model.safetensors")).items()})


if __name__ == "__main__":
    t.main()
