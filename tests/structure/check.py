#!/usr/bin/env python3
"""The rules of the tree that a compiler cannot check: who may include whom, what every file begins with, how large it may
grow, and what may not stand in it.

    check.py ROOT [--plc PLC] [--objects FOLDER] [--list]     one function below is one rule; all must hold
    check.py ROOT --self-test                                 each rule must find the fault that is planted for it
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

STAGES = ["base", "ir", "syntax", "model", "machine", "graph", "partition", "schedule", "kernels", "planner", "codegen", "driver"]
SOFT_CAP, HARD_CAP, LONGEST_FUNCTION = 600, 1500, 100
SKIPPED = re.compile(r"(^|/)(build[^/]*|\.git|__pycache__|\.cache)(/|$)")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def tree(root):
    """The files of the tree: those that git knows or would add; without git, all that is no build output."""
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z"], check=True, capture_output=True).stdout
        names = [name for name in out.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [os.path.relpath(os.path.join(folder, name), root) for folder, _, files in os.walk(root) for name in files]
    return sorted(name for name in names if not SKIPPED.search(name) and os.path.isfile(os.path.join(root, name)))


class Tree:
    def __init__(self, root):
        self.root, self.names, self.texts = root, tree(root), {}

    def text(self, name):
        if name not in self.texts:
            with open(os.path.join(self.root, name), encoding="utf-8", errors="replace") as file:
                self.texts[name] = file.read()
        return self.texts[name]

    def named(self, *patterns):
        return [name for name in self.names if any(re.fullmatch(pattern, name) for pattern in patterns)]

    def code(self):
        return self.named(r"(compiler|runtime|tests)/.*\.[ch]", r"(compiler|runtime)/.*\.def", r"grammar/plan\.(re|y)")


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def without_comments(text):
    """C text with comments blanked, line by line, strings kept."""
    def blank(match):
        return match.group(0) if match.group(0)[0] in "\"'" else re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', blank, text, flags=re.S)


# ---- rules: each yields its faults as text ------------------------------------------------------------------------------


def include_order(tree, _):
    """A folder of the compiler includes only itself and folders to its left."""
    for name in tree.named(r"compiler/.*\.(c|h|def)", r"grammar/plan\.(re|y)"):
        stage = "syntax" if name.startswith("grammar/") else name.split("/")[1]
        if stage not in STAGES:
            yield "%s: `%s` is no stage of the compiler" % (name, stage)
            continue
        for match in INCLUDE.finditer(tree.text(name)):
            other = match.group(2).split("/")[0]
            if match.group(1) == '"' and other in STAGES and STAGES.index(other) > STAGES.index(stage):
                yield "%s:%d: %s includes %s, which comes after it" % (name, line_of(tree.text(name), match.start()), stage, match.group(2))


def runtime_alone(tree, _):
    """The runtime includes nothing of the compiler."""
    for name in tree.named(r"runtime/.*\.(c|h|def)"):
        for match in INCLUDE.finditer(tree.text(name)):
            if match.group(1) == '"' and (match.group(2).split("/")[0] in STAGES or "compiler/" in match.group(2)):
                yield "%s:%d: the runtime includes %s" % (name, line_of(tree.text(name), match.start()), match.group(2))


def llvm_in_codegen(tree, _):
    """Only codegen sees LLVM, and only its C interface."""
    for name in tree.named(r"(compiler|runtime|grammar)/.*"):
        for match in INCLUDE.finditer(tree.text(name)):
            included = match.group(2)
            if included.startswith("llvm") and not (name.startswith("compiler/codegen/") and included.startswith("llvm-c/")):
                yield "%s:%d: includes %s" % (name, line_of(tree.text(name), match.start()), included)


def no_data_parallelism(tree, _):
    """No code knows a kind of parallelism by its name: sharding is a matter of axes and dimensions."""
    words = re.compile(r"\b\w*(data_?parallel|tensor_?parallel|sequence_?parallel|(?<![a-z])ddp(?![a-z])|fsdp|zero_?[123](?!\d)|_dp\b|\bdp_)\w*", re.I)
    for name in tree.named(r"(compiler|runtime)/.*\.(c|h|def)"):
        text = without_comments(tree.text(name))
        for match in words.finditer(text):
            yield "%s:%d: `%s`" % (name, line_of(text, match.start()), match.group(0))


def opening_comment(tree, _):
    """Every source file opens with a comment that says what it is."""
    for name in tree.named(r"(compiler|runtime|tests)/.*\.[ch]", r"(compiler|runtime)/.*\.def", r"grammar/plan\.(re|y)"):
        if not tree.text(name).startswith("/*"):
            yield "%s: begins without a comment" % name
    for name in tree.named(r".*\.py", r".*\.sh"):
        first = re.sub(r"^#!.*\n", "", tree.text(name)).lstrip()
        if not first.startswith(('"""', "#")):
            yield "%s: begins without a comment" % name


def stage_header_comment(tree, _):
    """What changes the stage is called X_to_Y.c, and says in its comment what comes in and what goes out, in three lines at least."""
    for name in tree.named(r"compiler/.*_to_.*\.c"):
        comment = tree.text(name).split("*/")[0]
        if comment.count("\n") < 2:
            yield "%s: its opening comment is too short to say what comes in and what goes out" % name


def file_size(tree, options):
    """No file beyond the hard cap; tables excepted."""
    for name in tree.named(r".*\.(c|h|re|y|py|sh)"):
        n = tree.text(name).count("\n")
        if n > HARD_CAP:
            yield "%s: %d lines, more than %d" % (name, n, HARD_CAP)
        elif n > SOFT_CAP and options.list:
            print("over the soft cap of %d lines: %s (%d)" % (SOFT_CAP, name, n))


def function_size(tree, options):
    """No function beyond 100 lines; the aim is 60."""
    for name in tree.named(r"(compiler|runtime)/.*\.c"):
        lines = tree.text(name).split("\n")
        start = None
        for number, line in enumerate(lines):
            if re.match(r"^[A-Za-z_].*\{$", line) and "(" in line and "=" not in line.split("(")[0]:
                start = number
            elif line == "}" and start is not None:
                n = number - start + 1
                title = lines[start].split("(")[0].split()[-1]
                if n > LONGEST_FUNCTION:
                    yield "%s:%d: `%s` has %d lines, more than %d" % (name, start + 1, title, n, LONGEST_FUNCTION)
                elif n > 60 and options.list:
                    print("over 60 lines: %s:%d %s (%d)" % (name, start + 1, title, n))
                start = None


def nothing_of_this_place(tree, _):
    """The tree names no machine, no folder of one, no package registry, and not how it was made."""
    words = ["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "../sha" + "red", "pypi" + ".org", "npm" + "js.org", "crates" + ".io", "proxy.go" + "lang",
             "pythonhosted" + ".org", "deb.deb" + "ian.org", "anth" + "ropic", "clau" + "de", "chat" + "gpt", "co" + "pilot", "TO" + "DO", "FIX" + "ME", "XX" + "X\\b"]
    pattern = re.compile("|".join(re.escape(word) if word[0] in "/." else r"\b" + word for word in words))
    insensitive = re.compile("|".join(("anth" + "ropic", "clau" + "de", "chat" + "gpt")), re.I)
    for name in tree.names:
        text = tree.text(name)
        if "\0" in text[:4096]:
            continue
        for match in list(pattern.finditer(text)) + list(insensitive.finditer(text)):
            yield "%s:%d: `%s`" % (name, line_of(text, match.start()), match.group(0))


def abi_used(tree, _):
    """Every function of the ABI list is defined in the runtime once and called by generated code; no other is called."""
    listed = re.findall(r"^RT\((\w+)", tree.text("runtime/include/plan_rt_abi.def"), re.M)
    runtime = "\n".join(tree.text(name) for name in tree.named(r"runtime/.*\.c"))
    codegen = "\n".join(tree.text(name) for name in tree.named(r"compiler/codegen/.*\.[ch]"))
    for function in listed:
        if len(re.findall(r"^\w[\w *]*\b%s\(" % function, runtime, re.M)) != 1:
            yield "plan_rt_abi.def: `%s` is not defined once in the runtime" % function
        if '"%s"' % function not in codegen:
            yield "plan_rt_abi.def: no generated code calls `%s`" % function
    for function in set(re.findall(r'"(prt_\w+)"', codegen)) - set(listed):
        yield "codegen calls `%s`, which is not in plan_rt_abi.def" % function


def operators_documented(tree, options):
    """`plc ops` explains every operator of the table."""
    if not options.plc:
        return
    out = subprocess.run([options.plc, "ops", "--json"], check=True, capture_output=True, text=True).stdout
    shown = {op["name"]: op for op in map(json.loads, out.splitlines())}
    for name in re.findall(r"^OP\(\w+,\s*(\w+)", tree.text("compiler/ir/ops.def"), re.M):
        if name in shown and not (len(shown[name].get("doc", "")) > 10 and shown[name].get("dimensions")):
            yield "operator `%s` has no documentation" % name
    if len(shown) < 20:
        yield "`plc ops` lists only %d operators" % len(shown)


def no_mutable_globals(tree, options):
    """No object file of the compiler has writable data (constants that hold pointers lie in .data.rel.ro)."""
    if not options.objects:
        return
    found = 0
    for folder, _, files in os.walk(options.objects):
        stage = re.search(r"plan_(%s)\.dir" % "|".join(STAGES + ["grammar", "codegen_objects"]), folder)
        objects = [os.path.join(folder, name) for name in files if name.endswith(".o")] if stage else []
        for path in objects:
            found += 1
            out = subprocess.run(["objdump", "-t", path], check=True, capture_output=True, text=True).stdout
            for line in out.splitlines():
                match = re.match(r"\S+ (.{7}) (\.data|\.bss|\.data\.\S+|\.bss\.\S+)\t\S+ (\S+)$", line)
                if match and "O" in match.group(1) and not match.group(2).startswith(".data.rel.ro") and "asan" not in match.group(3):
                    yield "%s: `%s` is a mutable global" % (os.path.relpath(path, options.objects), match.group(3))
    if not found:
        yield "no object files under %s" % options.objects


def passes_use_the_table(tree, _):
    """No switch over the operator enum: what differs by operator is in the operator's table entry."""
    for name in tree.named(r"compiler/.*\.c"):
        text = without_comments(tree.text(name))
        for match in re.finditer(r"\bcase OP_\w+:", text):
            yield "%s:%d: `%s`" % (name, line_of(text, match.start()), match.group(0))


RULES = [include_order, runtime_alone, llvm_in_codegen, no_data_parallelism, opening_comment, stage_header_comment, file_size, function_size,
         nothing_of_this_place, abi_used, operators_documented, no_mutable_globals, passes_use_the_table]


# ---- every rule must be able to fail -------------------------------------------------------------------------------------

PLANTED = {
    include_order: ("compiler/ir/bad.c", '/* x */\n#include "graph/graph.h"\n'),
    runtime_alone: ("runtime/core/bad.c", '/* x */\n#include "ir/ir.h"\n'),
    llvm_in_codegen: ("compiler/graph/bad.c", "/* x */\n#include <llvm-c/Core.h>\n"),
    no_data_parallelism: ("runtime/comm/bad.c", "/* data parallel is fine here */\nint data_parallel_size;\n"),
    opening_comment: ("compiler/ir/bad.c", "int x;\n"),
    stage_header_comment: ("compiler/graph/a_to_b.c", "/* short */\n"),
    file_size: ("compiler/ir/bad.c", "/* x */\n" + "int x;\n" * (HARD_CAP + 1)),
    function_size: ("compiler/ir/bad.c", "/* x */\nint f(void) {\n" + "    g();\n" * (LONGEST_FUNCTION + 1) + "}\n"),
    nothing_of_this_place: ("docs/bad.md", "see /ro" + "ot/x\n"),
    abi_used: ("runtime/include/plan_rt_abi.def", "RT(prt_nothing, void, void)\n"),
    passes_use_the_table: ("compiler/graph/bad.c", "/* x */\nint f(int x) {\n    switch (x) {\n    case OP_ADD: return 1;\n    }\n}\n"),
}


def self_test(options):
    failed = 0
    for rule, (name, text) in PLANTED.items():
        with tempfile.TemporaryDirectory() as root:
            for path, content in ((name, text), ("compiler/codegen/c.c", '/* x */\nconst char *n = "prt_y";\n'), ("runtime/r.c", "/* x */\n")):
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as file:
                    file.write(content)
            if not list(rule(Tree(root), options)):
                print("rule %s does not find its planted fault" % rule.__name__)
                failed += 1
    print("%d rules tried on planted faults, %d blind" % (len(PLANTED), failed))
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--plc")
    parser.add_argument("--objects")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test(options)
    whole = Tree(options.root)
    failed = 0
    for rule in RULES:
        faults = list(rule(whole, options))
        failed += len(faults)
        print("%s %s" % ("FAIL" if faults else "ok  ", rule.__doc__.split("\n")[0]))
        for fault in faults:
            print("     " + fault)
    print("%d files, %d rules, %d faults" % (len(whole.names), len(RULES), failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
