"""What the benchmark scripts share. They are commands for people, not part of the test run: a busy machine changes them."""
import os, platform, random, resource, struct, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EXAMPLES = os.path.join(ROOT, "examples")


def machine():
    """One line about the machine, and how busy it was."""
    with open("/proc/cpuinfo") as f:
        name = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return "%s, %d cores, load %.1f" % (name, os.cpu_count(), os.getloadavg()[0])


def say_machine():
    print("machine: " + machine())
    if os.getloadavg()[0] > 1:
        print("note: the machine is busy, so these times are too long")


def timed(command, **how):
    """Wall-clock seconds and processor seconds of a command that must succeed."""
    spent = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    before, start = spent(), time.perf_counter()
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
    wall = time.perf_counter() - start
    if p.returncode:
        sys.exit("%s: status %d\n%s%s" % (" ".join(command), p.returncode, p.stdout, p.stderr))
    return wall, spent() - before


def best_of(n, command, **how):
    """(least wall-clock, least processor) seconds."""
    runs = [timed(command, **how) for _ in range(n)]
    return min(r[0] for r in runs), min(r[1] for r in runs)


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def write_tokens(path, n, vocab):
    """An llm.c file of random ids."""
    draw = random.Random(1)
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, n, *[0] * 253))
        f.write(struct.pack("<%dH" % n, *(draw.randrange(vocab) for _ in range(n))))
