#!/usr/bin/env python3
"""Memory is known before the run: the listing of buffers is recomputed here, and the processes are watched from outside.

usage: test_memory.py PLC [-v] [TEST...]
"""
import json, os, re, signal, subprocess, time

import plan_testing as t

MIB = 1 << 20
PLANS = [(example, plan) for example in ("01-quickstart", "02-gpt2", "03-llama", "04-classifier") for plan in ("single", "replicas")]
HEAD = re.compile(r"role (\d+): arena (\d+) bytes, largest sum of live bytes (\d+)")
LINE = re.compile(r" *(\d+) +(\d+) \w+ +(\w+) +(always|\d+\.\.\d+) +(\S+)")


def listing(plan, example, *options):
    """Arena, largest sum as stated, and (address, bytes, first, last, name) of every buffer."""
    text = t.run([t.PLC, "build", example, "--plan", plan, "--emit", "memory", *options])
    arena, stated = map(int, HEAD.match(text).groups()[1:])
    buffers = []
    for address, size, _, span, name in LINE.findall(text):
        first, last = (0, 1 << 60) if span == "always" else map(int, span.split(".."))
        buffers.append((int(address), int(size), first, last, name))
    assert len(buffers) == sum(line.lstrip()[:1].isdigit() for line in text.splitlines()), text
    return arena, stated, buffers


class Listing(t.Case):
    def check(self, arena, stated, buffers):
        self.assertGreater(len(buffers), 10)
        self.assertLessEqual(max(b[0] + b[1] for b in buffers), arena)
        self.assertLessEqual(stated, arena)
        largest = 0
        for now in sorted({b[2] for b in buffers}):
            live = sorted(b for b in buffers if b[2] <= now <= b[3])
            largest = max(largest, sum(b[1] for b in live))
            for a, b in zip(live, live[1:]):
                self.assertLessEqual(a[0] + a[1], b[0], "%s and %s overlap at %d" % (a[4], b[4], now))
        self.assertLessEqual(arena, 1.02 * largest)

    def test_peak_is_the_largest_sum_of_live_bytes(self):
        for example, plan in PLANS:
            with self.subTest(example=example, plan=plan):
                self.check(*listing(plan, os.path.join(t.EXAMPLES, example + ".plan")))

    def test_smaller_sizes(self):
        for options in (["--set", "seq=64"], ["--set", "layers=1"], ["--set", "layers=9", "--set", "seq=96"]):
            with self.subTest(options=options):
                self.check(*listing("single", os.path.join(t.EXAMPLES, "01-quickstart.plan"), *options))


def mappings(pid):
    """(name, bytes by key) of each mapping of a process."""
    out = []
    with open("/proc/%d/smaps" % pid) as f:
        for line in f:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                out.append((line.split(None, 5)[5].strip() if len(line.split(None, 5)) > 5 else "", {}))
            elif line.endswith(" kB\n"):
                key, value = line.split(":")
                out[-1][1][key] = int(value.split()[0]) * 1024
    return out


def of_files(maps, key):
    """The program itself and libc: mappings of files, not the shared memory of the ranks."""
    return sum(m.get(key, 0) for name, m in maps if name.startswith("/") and not name.startswith(("/dev/zero", "/dev/shm", "/SYSV", "/memfd")))


def status_of(pid, key):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":"))


def family(pid):
    """The process and all below it."""
    out = [pid]
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/children" % (pid, task)) as f:
            for child in f.read().split():
                out += family(int(child))
    return out


class Process(t.Case):
    def watch(self, name, program, *options):
        """Runs until eight steps and an evaluation are done; then the facts of all processes, and the metrics."""
        p = subprocess.Popen([program, "--metrics", self.path(name + ".jsonl"), "--set", "save.path=" + self.path("saved"), "--set",
                              "eval.every=2", "--set", "eval.batches=1", "--set", "save.every=2", *options], cwd=self.dir,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        end = time.time() + 300
        while time.time() < end and p.poll() is None:
            if os.path.exists(self.path(name + ".jsonl")) and len(self.metrics(name)) >= 8:
                break
            time.sleep(0.02)
        self.assertIsNone(p.poll(), p.stdout.read() if p.poll() is not None else "")
        for pid in family(p.pid):
            os.kill(pid, signal.SIGSTOP)
        facts = [(status_of(pid, "VmHWM"), mappings(pid)) for pid in family(p.pid)]
        for pid in family(p.pid):
            os.kill(pid, signal.SIGCONT)
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(timeout=120), 75, p.stdout.read())
        p.stdout.close()
        return facts, self.metrics(name)

    def check(self, example, plan, ranks, *options, sets=()):
        program = self.build(os.path.join(t.EXAMPLES, example + ".plan"), plan, "--plan", plan, *sets)
        facts, metrics = self.watch(plan, program, *options)
        arena = json.loads(t.run([program, "--describe"]))["roles"][0]["arena_bytes"]
        files = max(of_files(maps, "Rss") for _, maps in facts)
        # Shared pages count in parts in each process, so that the sum is what the machine has given to all of them.
        given = sum(m.get("Pss", 0) for _, maps in facts for _, m in maps) - sum(of_files(maps, "Pss") for _, maps in facts)
        self.assertLessEqual(given, ranks * (arena + 16 * MIB))
        self.assertGreater(given, 0.9 * ranks * arena)
        peak = metrics[-1]["peak_bytes"]
        self.assertLessEqual(peak, arena + 16 * MIB + files)
        self.assertGreater(peak, 0.9 * arena)
        if ranks == 1:
            self.assertLessEqual(max(high for high, _ in facts), arena + 16 * MIB + files)
        print("%s %s: arena %.1f MiB; given to %d ranks %.1f MiB, peak of one %.1f MiB, files %.1f MiB"
              % (example, plan, arena / MIB, ranks, given / MIB, peak / MIB, files / MIB))

    def test_one_rank(self):
        self.check("01-quickstart", "single", 1)

    def test_two_ranks(self):
        self.check("01-quickstart", "replicas", 2)

    def test_llama(self):
        self.check("03-llama", "single", 1, sets=("--set", "layers=2"))


if __name__ == "__main__":
    t.main()
