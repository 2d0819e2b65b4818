#!/usr/bin/env python3
"""What plc does not build is refused with status 1 and a way out, never built as something else.

usage: test_refusals.py PLC
"""
import os, subprocess, sys, tempfile, unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TWO_REPEATS = """import nn
model Two {
    dim one = 2, two = 2, embed = 64, ffn = 128, vocab = 256, seq = 64
    input  tokens: int[batch, seq]
    target labels: int[batch, seq] = next(tokens)
    weight token_table: [vocab, embed] = normal(0.02)
    x = lookup(token_table, tokens)
    repeat one { x = x + nn.mlp(nn.rms_norm(x, embed), embed -> ffn) }
    repeat two { x = x + nn.gated_mlp(nn.rms_norm(x, embed), embed -> ffn) }
    loss = cross_entropy(dot(nn.rms_norm(x, embed), token_table, over embed), labels, over vocab)
}
train {
    model     Two
    data      text("a.txt")
    batch     8
    steps     3
    optimizer sgd(lr = 0.1)
}
plan p {
    mesh pipe = 2
    one, two on pipe using one_f_one_b
}
"""


class Refusals(unittest.TestCase):
    def refused(self, *argv):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "two.plan"), "w") as file:
                file.write(TWO_REPEATS)
            done = subprocess.run([plc, *argv, "-o", os.path.join(folder, "out")], cwd=folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("help:", done.stderr)
            self.assertFalse(os.path.exists(os.path.join(folder, "out")))
            return done.stderr

    def test_gpu_program(self):
        quick = os.path.join(ROOT, "examples", "01-quickstart.plan")
        self.assertIn("a program for GPUs is not built yet", self.refused("build", quick, "--target", "cuda"))

    def test_pipeline_over_two_repeats(self):
        self.assertIn("a pipeline over several repeats is not built yet", self.refused("build", "two.plan"))


if __name__ == "__main__":
    plc = os.path.abspath(sys.argv.pop(1))
    unittest.main()
