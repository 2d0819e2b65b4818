#!/usr/bin/env python3
"""The same training under every plan, from the initial weights on.

The model and the training are those of examples/01-quickstart.plan; only steps are fewer.

usage: test_equality.py PLC [-v] [TEST...]
"""
import os, re, shutil, subprocess

import plan_testing as t

STEPS = 50


class Equality(t.Case):
    def losses(self, source, plan, steps=STEPS, name=None, options=()):
        name = name or plan
        return [m["loss"] for m in self.train(self.build(source, name, "--plan", plan), name, "--steps", str(steps), "--set", "eval.every=0", *options)]

    def test_replicas_equal_single(self):
        source = t.quickstart()
        single = self.losses(source, "single")
        self.assertLess(single[-1], single[0] - 2)
        self.assert_close(self.losses(source, "replicas"), single, 1e-5, "loss of replicas")

    def test_replicas_equal_single_with_dropout(self):
        source = t.quickstart(0.1)
        single = self.losses(source, "single")
        self.assert_close(self.losses(source, "replicas"), single, 1e-5, "loss of replicas with dropout")
        without = self.losses(t.quickstart(), "single", steps=1, name="without")
        self.assertGreater(t.relative(single[0], without[0]), 1e-5)

    def test_microbatches_and_meshes_are_equal(self):
        source, steps = t.quickstart(0.1), 10
        single = self.losses(source, "single", steps)
        for plan in ("micro", "four", "nested"):
            self.assert_close(self.losses(source, plan, steps), single, 1e-5, "loss of " + plan)

    def arena(self, source, plan):
        path = self.path("arena.plan")
        with open(path, "w") as f:
            f.write(source)
        return int(re.search(r"arena (\d+) bytes", t.run([t.PLC, "build", path, "--plan", plan, "--emit", "memory"])).group(1))

    def test_recomputation_gives_the_same_bits_from_less_memory(self):
        source, steps = t.quickstart(0.1), 6
        whole, bytes_kept = self.losses(source, "whole", steps), self.arena(source, "whole")
        for plan in ("full", "parts"):
            self.assertEqual(self.losses(source, plan, steps), whole, plan)
            self.assertLess(self.arena(source, plan), 0.8 * bytes_kept, plan)

    def test_padding_is_not_seen(self):
        """Losses of one rank; checkpoints have the model's shapes, and each plan goes on from the other's."""
        source, steps = t.quickstart(0.1), 6
        single = self.losses(source, "single", steps)
        for plan in ("longer", "stored"):
            self.assert_close(self.losses(source, plan, steps), single, 1e-5, "loss of " + plan)
            for kind in ("model", "optimizer"):
                mine, theirs = (t.read_tensors(os.path.join(self.checkpoint(name, steps), kind + ".safetensors")) for name in (plan, "single"))
                self.assertEqual({name: shape for name, (shape, _) in mine.items()}, {name: shape for name, (shape, _) in theirs.items()})
                for name in theirs:
                    self.assertLessEqual(t.distance(mine[name][1], theirs[name][1]), 1e-3 * t.norm(theirs[name][1]) + 1e-7, name)
            shutil.copytree(self.path("single-saved"), self.path(plan + "-from-single-saved"))
            more = self.train(self.path(plan), plan + "-from-single", "--steps", "9", "--resume", "--set", "eval.every=0")
            shutil.copytree(self.path(plan + "-saved"), self.path("single-from-" + plan + "-saved"))
            back = self.train(self.path("single"), "single-from-" + plan, "--steps", "9", "--resume", "--set", "eval.every=0")
            self.assertEqual([m["step"] for m in more], [7, 8, 9])
            self.assert_close([m["loss"] for m in more], [m["loss"] for m in back], 1e-5, "loss, resumed from " + plan)

    def test_fewer_key_heads_than_ranks(self):
        """Copies of key and value heads: the losses of one rank, its checkpoints, and the text that it writes."""
        with open(os.path.join(t.EXAMPLES, "03-llama.plan")) as f:
            source = f.read() + "plan four {\n    mesh tensor = 4\n    head, ffn, kv_head repeated on tensor\n}\n"
        for name, size in (("layers", 2), ("seq", 64), ("batch", 4)):
            source = re.sub(r"\b%s( *=? +)\d+" % name, r"%s\g<1>%d" % (name, size), source, count=1)
        source, steps = re.sub(r"microbatch +\d+", "microbatch 2", source), 4
        single = self.losses(source, "single", steps)
        self.assert_close(self.losses(source, "four", steps), single, 1e-5, "loss of four")
        mine, theirs = (t.read_tensors(os.path.join(self.checkpoint(name, steps), "model.safetensors")) for name in ("four", "single"))
        for name, (shape, values) in theirs.items():
            self.assertEqual(mine[name][0], shape, name)
            self.assertLessEqual(t.distance(mine[name][1], values), 1e-3 * t.norm(values) + 1e-7, name)
        say = ("sample", "--prompt", "the", "--tokens", "12", "--temperature", "0", "--from", self.path("single-saved"))
        texts = [t.run([self.path(name), *say], cwd=self.dir) for name in ("single", "four")]
        self.assertEqual(texts[0], texts[1])

    def test_initial_weights_do_not_depend_on_the_plan(self):
        """With a learning rate of nothing, the checkpoint after step 1 holds the initial weights."""
        source, kept = t.quickstart(0.1), {}
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
        """Every plan of the lesson on experts: alone over the data ranks, on an axis of their own, with tensor and ZeRO. Ten
        steps: later a near tie between two experts may go either way, and then the runs part."""
        with open(os.path.join(t.EXAMPLES, "06-experts.plan")) as f:
            source = f.read()
        single = self.losses(source, "single", 10)
        self.assertLess(single[-1], single[0])
        for plan in ("experts", "own_axis", "mixed"):
            self.assert_close(self.losses(source, plan, 10), single, 1e-4, "loss of " + plan)

    def test_sampling_under_any_plan(self):
        """A checkpoint of one rank, sampled by programs with stages, chunks, experts over several axes, and all of it: the
        same text, greedy and by chance. No plan has to be trained for that."""
        ranks = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ranks")
        for model, plans in (("mixtral", ("joint", "with_stages", "with_chunks", "all_kinds")), ("deepseek", ("tensor", "pipe")), ("pipeline", ("interleaved2", "uneven_zero1"))):
            with open(os.path.join(ranks, model + ".plan")) as f:
                source = f.read()
            self.losses(source, "single", 4, model)
            for heat in ("0", "1"):
                say = ("sample", "--prompt", "the", "--tokens", "24", "--temperature", heat, "--from", self.path(model + "-saved"))
                texts = {}
                for plan in ["single", *plans]:
                    program = self.build(source, model + "-" + plan, "--plan", plan)
                    done = subprocess.run([program, *say], cwd=self.dir, capture_output=True)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    texts[plan] = done.stdout
                self.assertEqual([plan for plan in texts if texts[plan] != texts["single"]], [], model)

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


if __name__ == "__main__":
    t.main()
