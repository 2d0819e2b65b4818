#!/usr/bin/env python3
"""Runs tests/run/fake_program.c, linked with the runtime, as a user would: data, ranks, checkpoints, signals, faults.

usage: test_runtime.py LIBPLAN_RT.a [-v] [TEST...]      (Python's standard library and a C compiler are all it needs)
"""
import glob, json, os, pty, random, resource, select, shutil, signal, struct, subprocess, sys, tempfile, time, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY, WORK, CORPUS = "", "", b""
MASK = (1 << 64) - 1


def xxh64(data):
    """An implementation of its own, so that it checks the runtime's."""
    p1, p2, p3, p4, p5 = (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261)
    rot = lambda x, r: (x << r | x >> (64 - r)) & MASK
    rnd = lambda a, x: rot((a + x * p2) & MASK, 31) * p1 & MASK
    n, i = len(data), 0
    if n >= 32:
        v = [(p1 + p2) & MASK, p2, 0, -p1 & MASK]
        while i + 32 <= n:
            for k, x in enumerate(struct.unpack_from("<4Q", data, i)):
                v[k] = rnd(v[k], x)
            i += 32
        h = (rot(v[0], 1) + rot(v[1], 7) + rot(v[2], 12) + rot(v[3], 18)) & MASK
        for x in v:
            h = ((h ^ rnd(0, x)) * p1 + p4) & MASK
    else:
        h = p5
    h = (h + n) & MASK
    while i + 8 <= n:
        h = (rot(h ^ rnd(0, struct.unpack_from("<Q", data, i)[0]), 27) * p1 + p4) & MASK
        i += 8
    if i + 4 <= n:
        h = (rot(h ^ struct.unpack_from("<I", data, i)[0] * p1 & MASK, 23) * p2 + p3) & MASK
        i += 4
    for byte in data[i:]:
        h = rot(h ^ byte * p5 & MASK, 11) * p1 & MASK
    h = (h ^ h >> 33) * p2 & MASK
    h = (h ^ h >> 29) * p3 & MASK
    return h ^ h >> 32


def build(name, *flags):
    path = os.path.join(WORK, name)
    if not os.path.exists(path):
        subprocess.run(["cc", "-std=gnu17", "-O2", "-D_GNU_SOURCE", *flags, "-I" + os.path.join(HERE, "../../runtime/include"),
                        os.path.join(HERE, "fake_program.c"), LIBRARY, "-lm", "-lpthread", "-o", path, *os.environ.get("FAKE_LDFLAGS", "").split()], check=True)
    return path


def read_tensors(path):
    """safetensors by the letter of its specification."""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    assert raw[8:9] == b"{" and header.pop("__metadata__")["format"] == "pt"
    tensors, at = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        elements = 1
        for extent in entry["shape"]:
            elements *= extent
        assert begin == at and end - begin == 4 * elements and entry["dtype"] == "F32", name
        tensors[name] = (entry["shape"], struct.unpack("<%df" % elements, raw[8 + n + begin:8 + n + end]))
        at = end
    assert 8 + n + at == len(raw)
    return tensors


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=WORK)
        with open(os.path.join(self.dir, "corpus1.txt"), "wb") as f:
            f.write(CORPUS[:3000])
        with open(os.path.join(self.dir, "corpus2.txt"), "wb") as f:
            f.write(CORPUS[3000:5000])

    def tearDown(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def start(self, program, *args, env=None, **how):
        return subprocess.Popen([build(*program), *args], cwd=self.dir, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **how)

    def run_fake(self, program, *args, status=0, env=None, **how):
        p = self.start(program, *args, env=env, **how)
        out, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, status, (out + err).decode(errors="replace"))
        self.out, self.err = out.decode(errors="replace"), err.decode(errors="replace")
        return self.out

    def metrics(self, name="m.jsonl"):
        return [json.loads(line) for line in open(self.path(name))]

    def bytes_of(self, step, folder="checkpoints"):
        return [open(self.path(folder, "step-%08d" % step, name), "rb").read() for name in ("model.safetensors", "optimizer.safetensors")]

    def steps_in(self, folder="checkpoints"):
        return sorted(int(os.path.basename(p)[5:]) for p in glob.glob(self.path(folder, "step-*")))

    def wait_for(self, what, seconds=20):
        end = time.time() + seconds
        while time.time() < end:
            if what():
                return
            time.sleep(0.02)
        self.fail("waited in vain")


ONE, TWO, FOUR = ("fake1",), ("fake2", "-DFAKE_RANKS=2"), ("fake4", "-DFAKE_RANKS=4")
BIG = ("fake2b", "-DFAKE_RANKS=2", "-DFAKE_BIG")
FROM = ("fake2f", "-DFAKE_RANKS=2", '-DFAKE_FROM="start"')
TOKENS = ("fake1t", '-DFAKE_KIND="tokens"')


class Training(Case):
    def test_ranks_agree(self):
        losses = {}
        for n, program in ((1, ONE), (2, TWO), (4, FOUR)):
            self.run_fake(program, "--metrics", "m%d.jsonl" % n, "--set", "save.path=c%d" % n)
            losses[n] = [(m["loss"], m["grad_norm"]) for m in self.metrics("m%d.jsonl" % n)]
            self.assertEqual(len(losses[n]), 40)
        self.assertLess(losses[1][-1][0], losses[1][0][0] - 0.5)
        for n in (2, 4):
            for a, b in zip(losses[1], losses[n]):
                for x, y in zip(a, b):
                    self.assertAlmostEqual(x, y, delta=1e-5 * abs(x))
        whole = read_tensors(self.path("c1/step-00000040/model.safetensors"))
        for n in (2, 4):
            cut = read_tensors(self.path("c%d/step-00000040/model.safetensors" % n))
            self.assertEqual(cut["cut"], whole["cut"])
        self.assertEqual(whole["cut"][0], [3, 8])
        self.assertEqual(whole["table"][0], [256, 256])

    def test_same_seed_same_bits(self):
        for folder in ("a", "b"):
            self.run_fake(FOUR, "--set", "save.path=" + folder)
        self.assertEqual(self.bytes_of(40, "a"), self.bytes_of(40, "b"))
        self.run_fake(FOUR, "--set", "save.path=c", "--set", "seed=8")
        self.assertNotEqual(self.bytes_of(40, "a"), self.bytes_of(40, "c"))

    def test_threads_do_not_change_bits(self):
        for n in (1, 2, 3):
            self.run_fake(TWO, "--threads", str(n), "--set", "save.path=t%d" % n)
            self.assertIn("of %d thread" % n, self.out)
        self.assertEqual(self.bytes_of(40, "t1"), self.bytes_of(40, "t2"))
        self.assertEqual(self.bytes_of(40, "t1"), self.bytes_of(40, "t3"))

    def test_metrics(self):
        out = self.run_fake(TWO, "--metrics", "m.jsonl", "--log-every", "5")
        lines = self.metrics()
        self.assertEqual([m["step"] for m in lines], list(range(1, 41)))
        for m in lines:
            self.assertEqual(set(m) - {"val_loss"}, {"step", "loss", "grad_norm", "lr", "tokens_per_second", "step_ms", "peak_bytes"})
            self.assertAlmostEqual(m["tokens_per_second"] * m["step_ms"] / 1000, 256, delta=1e-4)  # of the whole step
            self.assertEqual("val_loss" in m, m["step"] % 10 == 0)
            self.assertLess(m["peak_bytes"], 792064 + (16 << 20))
            self.assertGreater(m["peak_bytes"], 300000)
        self.assertAlmostEqual(lines[0]["lr"], 1.0)
        self.assertAlmostEqual(lines[3]["lr"], 4.0)
        self.assertAlmostEqual(lines[39]["lr"], 0.4, places=5)
        self.assertIn("256 tokens = 8 sequences x 2 micro-batches x 16 tokens", out)
        self.assertIn("2 ranks (data = 2) of 1 thread", out)
        self.assertEqual([int(line.split()[1].split("/")[0]) for line in out.splitlines() if line.startswith("step ")],
                         [1, 5, 10, 15, 20, 25, 30, 35, 40])

    def test_memory_is_what_was_planned(self):
        arena = 67900928  # and every rank reads and writes half of the other's
        self.run_fake(BIG, "--steps", "6", "--metrics", "m.jsonl", "--set", "eval.every=0")
        for m in self.metrics():
            self.assertGreater(m["peak_bytes"], (64 << 20))
            self.assertLess(m["peak_bytes"], arena + (16 << 20))

    def test_start_from_weights(self):
        self.run_fake(FROM, status=1)
        self.assertIn("`start`", self.err)
        self.run_fake(ONE, "--set", "save.path=start", "--metrics", "a.jsonl")
        self.run_fake(FROM, "--metrics", "b.jsonl", "--steps", "3")
        a, b = self.metrics("a.jsonl"), self.metrics("b.jsonl")
        self.assertEqual(b[0]["step"], 1)
        self.assertLess(b[0]["loss"], a[0]["loss"] - 0.5)
        weights = self.path("start", "step-00000040", "model.safetensors")
        raw = open(weights, "rb").read()
        shutil.rmtree(self.path("start"))
        open(self.path("start"), "wb").write(raw)
        self.run_fake(FROM, "--metrics", "c.jsonl", "--steps", "3", "--set", "save.path=c")
        self.assertEqual([m["loss"] for m in self.metrics("c.jsonl")], [m["loss"] for m in b])

    def test_steps_keeps_the_schedule(self):
        self.run_fake(ONE, "--metrics", "a.jsonl")
        self.run_fake(ONE, "--metrics", "b.jsonl", "--steps", "6", "--set", "save.path=b")
        self.assertEqual([m["lr"] for m in self.metrics("b.jsonl")], [m["lr"] for m in self.metrics("a.jsonl")][:6])
        self.assertEqual(self.steps_in("b"), [6])
        self.run_fake(ONE, "--metrics", "c.jsonl", "--set", "steps=6", "--set", "save.path=c")
        self.assertAlmostEqual(self.metrics("c.jsonl")[-1]["lr"], 0.4, places=5)

    def test_progress_line_on_a_terminal(self):
        main, side = pty.openpty()
        p = subprocess.Popen([build(*ONE)], cwd=self.dir, stdout=side, stderr=side, env={**os.environ, "FAKE_SLEEP": "10"})
        os.close(side)
        seen = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:
                break
            if not part:
                break
            seen += part
        self.assertEqual(p.wait(), 0)
        self.assertIn(b"\r\x1b[K", seen)
        for word in (b"step 40/40", b"ETA", b"loss", b"lr", b"tok/s", b"\xe2\x96\x88"):
            self.assertIn(word, seen)

    def test_trace(self):
        self.run_fake(TWO, "--trace", "t")
        for rank in (0, 1):
            trace = json.load(open(self.path("t/rank%d_trace.json" % rank)))
            names = {e["name"] for e in trace["traceEvents"]}
            self.assertTrue({"F", "B", "OPT", "data", "save", "fake.plan:9 all_reduce of grad.table over data"} <= names, names)

    def test_dry_run_and_description(self):
        out = self.run_fake(TWO, "--dry-run")
        self.assertIn("nothing was trained", out)
        self.assertEqual(self.steps_in(), [])
        self.assertEqual(json.loads(self.run_fake(TWO, "--describe"))["plan"], "ranks2")
        self.assertIn("ranks2", self.run_fake(TWO, "--version"))
        self.assertIn("--resume", self.run_fake(TWO, "--help"))

    def test_no_save_path(self):
        self.run_fake(ONE, "--set", "save.every=0")
        self.assertEqual(self.steps_in(), [40])  # the end is saved wherever there is a path


class Usage(Case):
    def refuse(self, *args, say):
        self.run_fake(ONE, *args, status=2)
        for text in say:
            self.assertIn(text, self.err)
        self.assertEqual(self.steps_in(), [])

    def test_unknown(self):
        self.refuse("--step", "4", say=["`--step`", "`--steps`"])
        self.refuse("--metric=x", say=["did you mean `--metrics`"])
        self.refuse("sampel", say=["did you mean `sample`"])
        self.refuse("--set", "stepz=4", say=["`stepz`", "did you mean `steps`"])
        self.refuse("--set", "save.evry=4", say=["did you mean `save.every`"])
        self.refuse("--prompt", "x", say=["belongs to `sample`"])

    def test_values(self):
        self.refuse("--steps", "ten", say=["`--steps` takes a whole number", "`ten`"])
        self.refuse("--steps", say=["`--steps` needs a value"])
        self.refuse("--log-every", "0", say=["at least 1"])
        self.refuse("--set", "lr=-1", say=["`lr`"])
        self.refuse("--set", "lr", say=["NAME=VALUE"])
        self.refuse("--set", "lr=0.1", say=["ends at 0.4, above its peak 0.1"])
        self.refuse("--dry-run=1", say=["takes no value"])
        self.refuse("--threads", "-2", say=["`threads`"])
        self.refuse("--set", "save.path=", say=["empty"])

    def test_set_spellings(self):
        for spelling in ("save every", "save_every", "save.every"):
            out = self.run_fake(ONE, "--set", spelling + "=7", "--steps", "7", "--set", "save.path=" + spelling[4])
            self.assertIn("step-00000007", out)


class Resume(Case):
    def test_same_bits(self):
        for program in (ONE, TWO, FOUR):
            name = program[0]
            self.run_fake(program, "--set", "save.path=whole", "--metrics", "whole.jsonl")
            for stop in (3, 17, 25):  # an epoch has 17 steps and a half
                part = "%s-%d" % (name, stop)
                self.run_fake(program, "--set", "save.path=" + part, "--steps", str(stop), "--metrics", part + ".jsonl")
                out = self.run_fake(program, "--set", "save.path=" + part, "--resume", "--metrics", part + ".jsonl")
                self.assertIn("step %d, %d samples" % (stop, 16 * stop), out)
                self.assertEqual(self.bytes_of(40, "whole"), self.bytes_of(40, part))
                for a, b in zip(self.metrics("whole.jsonl"), self.metrics(part + ".jsonl")):
                    self.assertEqual((a["step"], a["loss"], a["grad_norm"]), (b["step"], b["loss"], b["grad_norm"]))
            shutil.rmtree(self.path("whole"))

    def test_other_number_of_ranks(self):
        self.run_fake(ONE, "--set", "save.path=whole", "--metrics", "whole.jsonl")
        whole = read_tensors(self.path("whole/step-00000040/model.safetensors"))
        for first, second in ((ONE, TWO), (TWO, FOUR), (FOUR, ONE)):
            part = first[0] + second[0]
            self.run_fake(first, "--set", "save.path=" + part, "--steps", "20")
            self.run_fake(second, "--set", "save.path=" + part, "--resume", "--metrics", part + ".jsonl")
            self.assertIn("saved by another program", self.out)
            mine = read_tensors(self.path(part, "step-00000040/model.safetensors"))
            self.assertEqual(mine["cut"], whole["cut"])
            for a, b in zip(self.metrics("whole.jsonl")[20:], self.metrics(part + ".jsonl")):
                self.assertEqual(a["step"], b["step"])
                self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-5 * a["loss"])

    def test_keep_and_lineage(self):
        self.run_fake(ONE)
        self.assertEqual(self.steps_in(), [30, 40])
        self.run_fake(ONE, "--steps", "25")  # a new run: the earlier one's stay
        self.assertIn("note: `checkpoints` holds 2 checkpoints of an earlier run", self.out)
        self.assertEqual(self.steps_in(), [20, 25, 30, 40])
        self.run_fake(ONE, "--resume")
        self.assertIn("step-00000025", self.out)  # the newest, not the highest
        self.assertEqual(self.steps_in(), [30, 40])

    def test_finished(self):
        self.run_fake(ONE)
        out = self.run_fake(ONE, "--resume")
        self.assertIn("nothing left to train", out)
        self.run_fake(ONE, "--resume", "--steps", "45")
        self.assertEqual(self.steps_in(), [40, 45])

    def test_refusals(self):
        self.run_fake(ONE, "--resume", status=1)
        self.assertIn("checkpoints", self.err)
        self.run_fake(ONE, "--steps", "10")
        self.run_fake(ONE, "--resume", "--set", "seed=9", status=1)
        self.assertIn("--set seed=7", self.err)
        self.run_fake(ONE, "--resume", "nowhere", status=1)
        self.assertIn("`nowhere`", self.err)

    def test_incomplete_is_passed_over(self):
        self.run_fake(ONE)
        os.unlink(self.path("checkpoints/step-00000040/COMPLETE"))
        out = self.run_fake(ONE, "--resume")
        self.assertIn("checkpoints/step-00000030", out)
        self.assertEqual(self.steps_in(), [30, 40])
        os.makedirs(self.path("other/step-00000001"))
        self.run_fake(ONE, "--resume", "other", status=1)
        self.assertIn("no complete checkpoint (1 were not finished)", self.err)

    def damage(self, change, say, name="model.safetensors", sign=True):
        shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
        self.run_fake(TWO, "--steps", "10")
        folder = self.path("checkpoints/step-00000010")
        raw = open(os.path.join(folder, name), "rb").read()
        raw = change(raw)
        open(os.path.join(folder, name), "wb").write(raw)
        if sign:
            complete = json.load(open(os.path.join(folder, "COMPLETE")))
            for file in complete["files"]:
                if file["name"] == name:
                    file["bytes"], file["xxh64"] = len(raw), ["%016x" % xxh64(raw)]
            json.dump(complete, open(os.path.join(folder, "COMPLETE"), "w"))
        self.run_fake(TWO, "--resume", status=1)
        self.assertIn(say, self.err)
        self.assertRegex(self.err, "rank [01] of 2|error:")

    def test_damage(self):
        def header(change):
            def edit(raw):
                n = struct.unpack("<Q", raw[:8])[0]
                entries = json.loads(raw[8:8 + n])
                text = json.dumps(change(entries) or entries).encode()
                return struct.pack("<Q", len(text)) + text + raw[8 + n:]
            return edit

        def other_shape(e):
            e["cut"]["shape"] = [8, 3]

        def other_name(e):
            e["cat"] = e.pop("cut")

        def overlap(e):
            e["cut"]["data_offsets"] = [0, 96]

        flip = lambda raw: raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:]
        self.damage(flip, "checksum", sign=False)
        self.damage(lambda raw: raw[:-100], "is damaged: it has", sign=False)
        self.damage(lambda raw: b"", "is damaged", sign=False)
        self.damage(flip, "checksum", name="optimizer.safetensors", sign=False)
        self.damage(lambda raw: b"{", "damaged", name="state.json", sign=False)
        self.damage(header(other_shape), "`cut` has shape [8, 3], the program's has [3, 8]")
        self.damage(header(other_name), "has no tensor `cut`")
        self.damage(header(overlap), "is damaged")
        self.damage(lambda raw: struct.pack("<Q", 1 << 60) + raw[8:], "is damaged: its header would have")
        self.damage(lambda raw: raw[:8] + b"[" + raw[9:], "no JSON object")
        self.damage(lambda raw: raw + b"1234", "its header promises")
        self.damage(lambda raw: raw[:-4], "its header promises")


class Faults(Case):
    def fail_within(self, program, seconds, *args, env, say):
        start = time.time()
        self.run_fake(program, *args, status=1, env=env)
        self.assertLess(time.time() - start, seconds)
        for text in say:
            self.assertIn(text, self.err)

    def test_killed_rank(self):
        self.fail_within(TWO, 10, env={"FAKE_KILL": "1:15"}, say=["rank 1 of 2", "killed by signal 9", "step 15", "F"])
        self.assertEqual(self.steps_in(), [10])
        self.run_fake(TWO, "--resume")
        self.run_fake(TWO, "--set", "save.path=whole")
        self.assertEqual(self.bytes_of(40), self.bytes_of(40, "whole"))
        self.fail_within(ONE, 10, "--set", "save.path=one", env={"FAKE_KILL": "0:3"}, say=["rank 0 of 1", "signal 9", "step 3"])

    def test_exit_and_hang(self):
        self.fail_within(FOUR, 10, env={"FAKE_EXIT": "2:5"}, say=["rank 2 of 4", "status 9", "step 5"])
        self.fail_within(FOUR, 20, "--set", "timeout=1", env={"FAKE_HANG": "3:5"},
                         say=["missing rank 3", "fake.plan:9 all_reduce of grad.table over data", "step 5"])

    def test_mismatch(self):
        self.fail_within(TWO, 20, "--set", "timeout=3", env={"FAKE_MISMATCH": "1:5"}, say=["does not match", "all_gather", "grad.table"])

    def test_nan(self):
        for program, rank in ((ONE, 0), (TWO, 1)):
            shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
            self.fail_within(program, 10, "--metrics", "m.jsonl", env={"FAKE_NAN": "%d:15" % rank},
                             say=["step 15", "the gradient's norm is nan", "`grad.table`", "[5, 3]", "checkpoint is of step 10"])
            self.assertEqual(self.steps_in(), [10])
            self.assertIsNone(self.metrics()[-1]["grad_norm"])
            self.run_fake(program, "--resume")

    def test_full_disk(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))
        self.run_fake(TWO, "--steps", "10")
        before = self.bytes_of(10)
        self.run_fake(TWO, "--resume", status=1, preexec_fn=limit)
        self.assertIn("cannot save `checkpoints/step-00000020`: File too large", self.err)
        self.assertEqual(self.steps_in(), [10])
        self.assertEqual(self.bytes_of(10), before)
        self.assertFalse(os.path.exists(self.path("checkpoints/.saving")))
        self.run_fake(TWO, "--resume")

    def test_full_file_system(self):
        os.mkdir(self.path("small"))
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=800k", "none", self.path("small")], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("cannot mount a small file system here")
        try:
            self.run_fake(TWO, "--set", "save.path=small", "--steps", "10")
            self.run_fake(TWO, "--set", "save.path=small", "--resume", status=1)
            self.assertIn("No space left on device", self.err)
            self.assertIn("a checkpoint takes", self.out)
            self.assertEqual(self.steps_in("small"), [10])
            self.run_fake(TWO, "--set", "save.path=large", "--resume", "small")
        finally:
            subprocess.run(["umount", self.path("small")])

    def test_killed_while_saving(self):
        chance = random.Random(5)
        last = 0
        for _ in range(12):
            args = ["--set", "save.every=1", "--set", "save.keep=2", "--set", "steps=100000", "--set", "eval.every=0"]
            p = self.start(TWO, *args, *(["--resume"] if self.steps_in() else []), start_new_session=True)
            count = last
            self.wait_for(lambda: any(s > count for s in self.steps_in()))
            time.sleep(chance.random() * 0.1)
            os.killpg(p.pid, signal.SIGKILL)
            p.communicate()
            complete = [s for s in self.steps_in() if os.path.exists(self.path("checkpoints/step-%08d/COMPLETE" % s))]
            self.assertTrue(complete)
            self.assertGreaterEqual(max(complete), last)
            last = max(complete)
            read_tensors(self.path("checkpoints/step-%08d/model.safetensors" % last))
        out = self.run_fake(TWO, "--resume", "--set", "steps=100000", "--steps", str(last + 2), "--set", "eval.every=0")
        self.assertIn("step-%08d" % last, out)

    def children(self, pid):
        return [int(c) for c in open("/proc/%d/task/%d/children" % (pid, pid)).read().split()]

    def test_parent_dies(self):
        p = self.start(TWO, env={"FAKE_SLEEP": "20"})
        self.wait_for(lambda: len(self.children(p.pid)) == 2)
        ranks = self.children(p.pid)
        p.kill()
        p.communicate()
        alive = lambda pid: os.path.exists("/proc/%d" % pid) and open("/proc/%d/stat" % pid).read().split()[2] != "Z"
        self.wait_for(lambda: not any(alive(pid) for pid in ranks), 5)

    def test_signals(self):
        self.run_fake(TWO, "--set", "save.path=whole")
        for which, to_rank in ((signal.SIGTERM, False), (signal.SIGUSR1, False), (signal.SIGINT, False), (signal.SIGTERM, True)):
            shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
            p = self.start(TWO, "--metrics", "m.jsonl", env={"FAKE_SLEEP": "15"})
            self.wait_for(lambda: os.path.exists(self.path("m.jsonl")) and len(open(self.path("m.jsonl")).readlines()) >= 3)
            os.kill(self.children(p.pid)[1] if to_rank else p.pid, which)
            out, err = p.communicate(timeout=20)
            self.assertEqual(p.returncode, 75, err)
            self.assertIn(b"`--resume` goes on from here", out)
            steps = self.steps_in()
            self.assertEqual(steps[-1], self.metrics()[-1]["step"])
            self.run_fake(TWO, "--resume")
            self.assertEqual(self.bytes_of(40), self.bytes_of(40, "whole"))
            os.unlink(self.path("m.jsonl"))

    def test_second_signal(self):
        p = self.start(TWO, "--metrics", "m.jsonl", env={"FAKE_SLEEP": "3000"})
        self.wait_for(lambda: len(self.children(p.pid)) == 2)
        time.sleep(0.3)
        p.send_signal(signal.SIGINT)
        time.sleep(0.3)
        start = time.time()
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=20)
        self.assertLess(time.time() - start, 2)
        self.assertEqual(p.returncode, 130)

    def test_lock(self):
        p = self.start(ONE, env={"FAKE_SLEEP": "50"})
        self.wait_for(lambda: os.path.exists(self.path("checkpoints/.lock")) and self.children(p.pid))
        self.run_fake(ONE, status=1)
        self.assertIn("in use by another run (process %d)" % p.pid, self.err)
        p.terminate()
        p.communicate()
        self.run_fake(ONE, "--resume")


class Injection(Case):
    """The n-th allocation or file operation of a process fails: the run ends well or with a message, and what is saved
    is whole."""

    def fail_all(self, kind, turns, program=TWO):
        shim = self.path("fail_nth.so")
        subprocess.run(["cc", "-std=gnu17", "-O1", "-shared", "-fPIC", os.path.join(HERE, "fail_nth.c"), "-o", shim], check=True)
        failures = 0
        for n in turns:
            shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
            p = self.start(program, "--steps", "4", "--set", "save.every=2", "--set", "eval.every=2", "--set", "timeout=10",
                           env={"LD_PRELOAD": shim, "FAIL_KIND": kind, "FAIL_AT": str(n)})
            out, err = p.communicate(timeout=60)
            where = "%s %d: %s" % (kind, n, (out + err).decode(errors="replace"))
            self.assertIn(p.returncode, (0, 1), where)
            failures += p.returncode
            if p.returncode:
                self.assertIn(b"error: ", err, where)
            for step in self.steps_in():
                if os.path.exists(self.path("checkpoints/step-%08d/COMPLETE" % step)):
                    read_tensors(self.path("checkpoints/step-%08d/model.safetensors" % step))
            if p.returncode == 0 and self.steps_in():
                self.assertEqual(self.steps_in()[-1], 4, where)
            if b"injected" not in err:
                break
        self.assertGreater(failures, 3)

    def test_memory(self):
        self.fail_all("memory", sorted(random.Random(3).sample(range(1, 900), 40)))

    def test_files(self):
        self.fail_all("file", range(1, 60))

    def test_file_of_one_rank(self):
        self.fail_all("file", range(1, 60), ONE)


class Data(Case):
    def refuse(self, data, *say, program=ONE):
        self.run_fake(program, "--set", "data=" + data, status=1)
        for text in say:
            self.assertIn(text, self.err)

    def write(self, name, raw):
        open(self.path(name), "wb").write(raw)
        return name

    def test_text_refusals(self):
        self.refuse("nothing*.txt", "no file matches `nothing*.txt`", "fake.plan:3")
        self.refuse(self.write("empty.txt", b""), "is empty: 1 files hold nothing")
        self.refuse(".", "is a directory")
        self.refuse(self.write("small.txt", b"x" * 200), "the training data has 180 ids, but one step needs 257", "16 sequences of 16")
        self.refuse(self.write("a.gz", b"\x1f\x8b" + bytes(9000)), "gzip")
        self.refuse(self.write("t.txt", struct.pack("<256i", 20240520, 1, 9000, *[0] * 253) + bytes(18000)), "holds token ids (llm.c)")

    def test_validation_short(self):
        # a tenth of 1280 bytes is 128 ids: one less than 8 sequences of 16 and one more
        self.refuse(self.write("v.txt", CORPUS[:1280]), "the validation data has 128 ids, but one micro-batch of evaluation needs 129")
        self.run_fake(ONE, "--steps", "2", "--set", "data=" + self.write("v.txt", CORPUS[:1290]))
        self.assertIn("evaluation asks for 2 batches, 32 samples; the validation data gives 8", self.out)

    def test_text_notes(self):
        self.write("n1.txt", b"\xef\xbb\xbf" + b"one\r\ntwo\r\n" * 200)
        self.write("n2.txt", b"caf\x92 \xed\xa0\x80" + b"lone\rcr " * 300)
        self.write("n3.txt", b"")
        out = self.run_fake(ONE, "--steps", "1", "--set", "data=n*.txt")
        for text in ("1 empty files were passed over", "1 files begin with a byte-order mark", "400 lines end in CR LF",
                     "4 bytes are not UTF-8, the first in `n2.txt` at byte 3"):
            self.assertIn(text, out)

    def llm_c(self, ids, magic=20240520, version=1, count=None):
        head = struct.pack("<256i", magic, version, len(ids) if count is None else count, *[0] * 253)
        return head + struct.pack("<%d%s" % (len(ids), "H" if magic == 20240520 else "I"), *ids)

    def npy(self, ids, descr="<u2", fortran="False", shape=None):
        head = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }" % (descr, fortran, shape or "(%d,)" % len(ids))
        head += " " * (-(len(head) + 11) % 64) + "\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%d%s" % (len(ids), {"<u2": "H", "<i4": "i", "<f4": "f"}[descr]), *ids)

    def test_token_formats_agree(self):
        ids = list(CORPUS[:5000])
        losses = []
        for name, raw in (("a.bin", self.llm_c(ids)), ("b.bin", self.llm_c(ids, 20240801, 7)), ("c.npy", self.npy(ids)),
                          ("d.bin", self.npy(ids, "<i4")), ("e.npy", struct.pack("<5000H", *ids))):
            self.run_fake(TOKENS, "--set", "data=" + self.write(name, raw), "--metrics", "m.jsonl", "--steps", "5", "--set", "save.path=" + name[0])
            losses.append([m["loss"] for m in self.metrics()])
        for other in losses[1:]:
            self.assertEqual(losses[0], other)
        self.write("s1.bin", self.llm_c(ids[:2000]))
        self.write("s2.bin", self.llm_c(ids[2000:]))
        self.run_fake(TOKENS, "--set", "data=s*.bin", "--steps", "5", "--set", "save.path=s")
        self.assertIn("2 files (llm.c, 16-bit ids", self.out)

    def test_token_refusals(self):
        ids = list(CORPUS[:5000])
        tokens = lambda name, raw, *say: self.refuse(self.write(name, raw), *say, program=TOKENS)
        tokens("a.bin", self.llm_c(ids)[:-7], "`a.bin` is truncated", "5000 ids", "11024 bytes", "11017")
        tokens("a.bin", self.llm_c(ids) + b"xx", "`a.bin` is corrupt")
        tokens("a.bin", self.llm_c(ids, version=2), "version 2 of the llm.c format")
        tokens("a.bin", self.llm_c(ids, count=-5), "corrupt")
        tokens("a.bin", self.llm_c(ids[:777] + [256] + ids[778:]), "`a.bin` holds id 256 at position 777 (byte 2578), but ids must be below 256")
        tokens("a.bin", self.llm_c(ids[:99] + [4000000000] + ids[100:], 20240801, 7), "id 4000000000 at position 99")
        tokens("a.bin", b"x" * 9001, "no llm.c or .npy header", "9001")
        tokens("a.bin", b"MMIDIDX\0\0" + bytes(9000), "Megatron")
        tokens("a.npy", self.npy(ids)[:-1], "truncated")
        tokens("a.npy", self.npy(ids, "<f4"), "f32, not token ids")
        tokens("a.npy", self.npy(ids, "<i4", shape="(9,"), "shape")
        tokens("a.npy", self.npy(ids, fortran="True", shape="(50, 100)"), "column by column")
        tokens("a.npy", b"\x93NUMPY\x01\x00\xff\xff", "cannot be read")
        tokens("a.bin", self.llm_c([]), "is empty")

    def test_file_shrinks(self):
        p = self.start(ONE, "--metrics", "m.jsonl", env={"FAKE_SLEEP": "20"})
        self.wait_for(lambda: os.path.exists(self.path("m.jsonl")) and os.path.getsize(self.path("m.jsonl")) > 0)
        os.truncate(self.path("corpus1.txt"), 10)
        _, err = p.communicate(timeout=20)
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"corpus1.txt", err)
        self.assertIn(b"shorter since the start", err)


class Sampling(Case):
    def test_sample(self):
        self.run_fake(ONE, "sample", "--prompt", "Th", status=1)
        self.assertIn("train first", self.err)
        self.run_fake(TWO)
        sample = lambda *args, program=ONE: self.run_fake(program, "sample", "--prompt", "Th", "--tokens", "40", *args)
        a = sample()
        self.assertTrue(a.startswith("Th"))
        self.assertEqual(a, sample())
        self.assertEqual(a, sample(program=FOUR))
        self.assertNotEqual(a, sample("--seed", "3"))
        greedy = sample("--temperature", "0")
        self.assertEqual(greedy, sample("--top-k", "1"))
        self.assertEqual(greedy, sample("--from", "checkpoints/step-00000040", "--temperature", "0"))
        self.run_fake(ONE, "sample", status=2)
        self.assertIn("--prompt", self.err)
        self.run_fake(ONE, "sample", "--prompt", "", status=1)
        self.assertIn("the prompt is empty", self.err)

    def test_long_prompt_and_full_cache(self):
        self.run_fake(ONE, "--steps", "10")
        prompt = "a long prompt, longer than the model's sixteen positions"
        out = self.run_fake(ONE, "sample", "--prompt", prompt, "--tokens", "70", "--temperature", "0")
        self.assertIn("the model sees the last 16", self.err)
        self.assertTrue(out.startswith(prompt))
        self.assertEqual(len(out.encode()), len(prompt) + 71)

    def test_token_ids(self):
        raw = struct.pack("<5000H", *CORPUS[:5000])
        open(self.path("corpus9.txt"), "wb").write(raw)
        self.run_fake(TOKENS, "--steps", "10", "--set", "data=corpus9.txt")
        out = self.run_fake(TOKENS, "sample", "--prompt", "84 104", "--tokens", "5", "--set", "data=corpus9.txt")
        ids = [int(x) for x in out.split()]
        self.assertEqual(ids[:2], [84, 104])
        self.assertEqual(len(ids), 7)
        self.run_fake(TOKENS, "sample", "--prompt", "84 256", status=1)
        self.run_fake(TOKENS, "sample", "--prompt", "hello", status=1)
        self.assertIn("list of token ids", self.err)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    LIBRARY = os.path.abspath(sys.argv.pop(1))
    words = random.Random(1)
    vocabulary = ["".join(words.choice("aeiounrstlkm") for _ in range(words.randint(1, 8))) for _ in range(80)]
    CORPUS = " ".join(words.choice(vocabulary) for _ in range(2000)).encode()
    with tempfile.TemporaryDirectory() as WORK:
        unittest.main(warnings="ignore")
