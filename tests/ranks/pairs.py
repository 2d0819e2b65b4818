#!/usr/bin/env python3
"""Every kind of parallelism alone, every pair of kinds, larger combinations, and one plan of 32 ranks with everything.

usage: pairs.py PLC MODEL [--part N/M] [--only NAME...] [--list]

MODEL is a file of this folder: its model and its training are taken, its plans are not. A kind is one line of `KINDS`;
what is tested follows from the table. `--part 2/7` takes each seventh plan from the second on; without it all of them.
The plans go to equality.py, which trains each as real processes and compares it with `single`.
"""
import itertools, os, random, re, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LARGER = 40  # combinations of three kinds or more
MOST = 16    # ranks of a plan, but for the largest

# name: (group, mesh axis, rules on it, other lines, what the model must have). Of one group a plan has one kind, and the
# rules of several kinds on one axis stand in the order of this table. `{}` is the axis.
KINDS = {
    "experts":     ("expert", "data",    "expert, batch on {}",              "", "expert"),
    "own_experts": ("expert", "ep",      "expert on {}",                     "", "expert"),
    "tasks":       ("task",   "task",    "task on {}",                       "", "task"),
    "data":        ("data",   "data",    "batch on {}",                      "", ""),
    "two_data":    ("data",   "outer",   "batch on {}",                      "", ""),
    "zero1":       ("store",  "data",    "batch on {}; optimizer on {}",     "", ""),
    "zero2":       ("store",  "data",    "batch on {}; gradients on {}",     "", ""),
    "zero3":       ("store",  "data",    "batch on {}; weights on {}",       "", ""),
    "gather":      ("seq",    "context", "seq on {} using gather",           "", ""),
    "ulysses":     ("seq",    "context", "seq on {} using ulysses",          "", ""),
    "gpipe":       ("pipe",   "pipe",    "layers on {} using gpipe",         "microbatch 1", ""),
    "one_f_one_b": ("pipe",   "pipe",    "layers on {} using one_f_one_b",   "microbatch 1", ""),
    "zero_bubble": ("pipe",   "pipe",    "layers on {} using zero_bubble",   "microbatch 1", ""),
    "interleaved": ("pipe",   "pipe",    "layers on {} using interleaved(chunks = 2)", "microbatch 1", ""),
    "uneven_layers":      ("pipe",   "pipe",    "layers uneven(3, 1) on {} using one_f_one_b", "microbatch 1", ""),
    "head":        ("head",   "tensor",  "head on {}",                       "", ""),
    "repeated_keys":    ("head",   "tensor",  "head, kv_head repeated on {}",     "", "kv_head"),
    "ffn":         ("ffn",    "tensor",  "ffn on {}",                        "", ""),
    "vocab":       ("vocab",  "tensor",  "vocab on {}",                      "", ""),
    "padded_vocab":      ("vocab",  "wide",    "vocab padded on {}",               "", ""),
    "sequence":    ("last",   "tensor",  "seq on {}",                        "", ""),
    "recompute":   ("again",  "",        "",                                 "recompute full", ""),
    "in_parts":    ("again",  "",        "",                                 "recompute attention", ""),
    "microbatch":  ("micro",  "",        "",                                 "microbatch 1", ""),
}
AXES = ["outer", "data", "ep", "task", "pipe", "context", "wide", "tensor"]  # outermost first


def sizes(kinds):
    """{axis: ranks} in mesh order."""
    used = {KINDS[kind][1] for kind in kinds}
    ranks = {axis: 3 if axis == "wide" else 2 for axis in AXES if axis in used}
    if "repeated_keys" in kinds:
        ranks["tensor"] = 8  # twice as many as heads of keys
    if "two_data" in kinds:
        ranks.setdefault("data", 2)
    return {axis: ranks[axis] for axis in AXES if axis in ranks}


def block(name, kinds):
    """The text of a plan."""
    ranks = sizes(kinds)
    rules, lines = {axis: [] for axis in ranks}, []
    for kind, (_, axis, sentences, line, _) in KINDS.items():
        if kind not in kinds:
            continue
        rules.get(axis, []).extend(s for s in sentences.split("; ") if s and s.format(axis) not in rules[axis])
        if line and line not in lines:
            lines.append(line)
        if kind == "two_data" and not any("batch on" in rule for rule in rules["data"]):
            rules["data"].append("batch on {}")
    text = [f"plan {name} {{"]
    if ranks:
        text.append("    mesh " + ", ".join(f"{axis} = {n}" for axis, n in ranks.items()))
    for axis, sentences in rules.items():
        said = set()
        for sentence in sentences:
            # `batch on data` is said with the experts already
            if sentence == "batch on {}" and any("expert, batch" in other for other in sentences):
                continue
            if sentence not in said:
                said.add(sentence)
                text.append("    " + sentence.format(axis, axis))
    return "\n".join(text + ["    " + line for line in lines] + ["}"]) + "\n"


def product(kinds):
    ranks = 1
    for n in sizes(kinds).values():
        ranks *= n
    return ranks


def fit(kinds):
    """Whether a plan can have all of them."""
    groups = [KINDS[kind][0] for kind in kinds]
    if "ulysses" in kinds and "repeated_keys" in kinds:
        return False  # a head of keys is never cut
    return len(set(groups)) == len(groups)


def plans(model):
    """{name: kinds} for a model's text."""
    known = [kind for kind in KINDS if not KINDS[kind][4] or re.search(rf"\b{KINDS[kind][4]} *=", model)]
    made = {kind: (kind,) for kind in known}
    for pair in itertools.combinations(known, 2):
        if fit(pair):
            made["_with_".join(pair)] = pair
    draw, seen = random.Random(1), set()
    while len(seen) < LARGER:
        kinds = tuple(kind for kind in known if draw.random() < 0.25)
        if 3 <= len(kinds) and fit(kinds) and product(kinds) <= MOST and kinds not in seen:
            seen.add(kinds)
            made[f"larger_{len(seen)}"] = kinds
    last = ["zero3", "gather", "interleaved", "head", "ffn", "sequence", "recompute"]
    last += ["own_experts"] if "own_experts" in known else ["tasks"] if "tasks" in known else ["two_data"]
    made["everything"] = tuple(last + ["vocab"])
    return made


def head_of(path):
    """Model and training, with layers, heads and samples enough for two of every kind."""
    with open(path) as file:
        text = file.read()
    text = text[:text.index("plan single")]
    for name, size in (("layers", 4), ("head", 8), ("kv_head", 4), ("batch", 8)):
        text = re.sub(rf"\b{name}( = | +)[0-9]+\b", rf"{name}\g<1>{size}", text)
    # where a gradient is nothing but rounding, Adam would make a step of the size of the rate: a large epsilon
    text = text.replace("adamw(", "adamw(epsilon = 1e-5, ", 1)
    return text + "plan single { }\n"


def main():
    plc, path, *options = sys.argv[1:]
    if not os.path.exists(path):
        path = os.path.join(HERE, path + ".plan")
    head = head_of(path)
    made = plans(head)
    names = list(made)
    if "--part" in options:
        part, parts = map(int, options[options.index("--part") + 1].split("/"))
        names = names[part - 1::parts]
    if "--only" in options:
        names = options[options.index("--only") + 1:]
    text = head + "".join(block(name, made[name]) for name in names)
    if "--list" in options:
        print("".join(f"{name}: {', '.join(made[name])}\n" for name in names), end="")
        return 0
    folder = tempfile.mkdtemp(prefix="plan-pairs-")
    source = os.path.join(folder, "pairs.plan")
    with open(source, "w") as file:
        file.write(text)
    try:
        return subprocess.run([sys.executable, os.path.join(HERE, "equality.py"), plc, source]).returncode
    finally:
        os.remove(source)
        os.rmdir(folder)


if __name__ == "__main__":
    sys.exit(main())
