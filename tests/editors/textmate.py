#!/usr/bin/env python3
"""The TextMate grammar, run by a TextMate engine (that of the editor babi, on Oniguruma) in an environment of its own.

    textmate.py ROOT       the scopes that scopes.plan states; then every .plan file of the tree, token by token

The engine is installed with pinned versions into ${XDG_CACHE_HOME:-$HOME/.cache}/plan/venv-editors, once. Without it and without a
package index the test fails, and says so.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
PINNED = ["babi==1.8.0", "babi-grammars==0.0.74", "identify==2.6.20", "onigurumacffi==1.5.0", "cffi==2.1.1", "pycparser==3.12"]
VENV = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "plan", "venv-editors")
RESERVED = ["over", "on", "using", "padded", "uneven", "repeated", "along"]


def in_environment():
    """Starts this program again with the environment's interpreter; makes the environment first when it is not there."""
    python = os.path.join(VENV, "bin", "python")
    stamp = os.path.join(VENV, "complete")
    if not os.path.exists(stamp):
        os.makedirs(os.path.dirname(VENV), exist_ok=True)
        base = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
        for command in ([base, "-m", "venv", "--clear", VENV], [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"] + PINNED):
            if subprocess.run(command, check=False).returncode:
                sys.exit("the TextMate engine cannot be installed into %s: this test needs it, or a package index (%s failed)" % (VENV, command[2]))
        open(stamp, "w", encoding="utf-8").close()
    os.execv(python, [python, os.path.abspath(__file__), ROOT, "--inside"])


class Engine:
    def __init__(self, path):
        from babi import highlight
        self.highlight_line = highlight.highlight_line
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(path, os.path.join(folder, "source.plan.json"))
            self.compiler = highlight.Grammars(folder).compiler_for_scope("source.plan")


def tokenise(engine, text):
    """For each line the scopes of each column, outermost first."""
    lines, scopes = text.split("\n"), []
    state = engine.compiler.root_state
    for number, line in enumerate(lines):
        state, regions = engine.highlight_line(engine.compiler, state, line + "\n", number == 0)
        scopes.append([()] * (len(line) + 1))
        for region in regions:
            scopes[-1][region.start:region.end] = [region.scope] * (region.end - region.start)
    return lines, scopes


def has_scope(stack, wanted):
    return any(scope == wanted + ".plan" or scope.startswith(wanted + ".") for scope in stack)


def stated_scopes(lines):
    """(line, first column, last column, scope) of every expectation; the line above the run of comments is meant."""
    last = 0
    for number, line in enumerate(lines):
        arrow = re.match(r"# <- (\S+)", line)
        carets = re.match(r"#( *)(\^+) (\S+)", line)
        if arrow:
            width = len(re.match(r"\w+|#", lines[last]).group(0))
            yield last, 0, width - 1, arrow.group(1)
        elif carets:
            start = 1 + len(carets.group(1))
            yield last, start, start + len(carets.group(2)) - 1, carets.group(3)
        else:
            last = number


def check_stated(engine):
    with open(os.path.join(HERE, "scopes.plan"), encoding="utf-8") as file:
        lines, scopes = tokenise(engine, file.read())
    faults, n = [], 0
    for line, first, last, wanted in stated_scopes(lines):
        n += 1
        for column in range(first, last + 1):
            stack = scopes[line][column] if column < len(scopes[line]) else ()
            if not has_scope(stack, wanted):
                faults.append("scopes.plan:%d:%d: `%s` is %s, not %s" % (line + 1, column + 1, lines[line][first:last + 1], " ".join(stack[1:]) or "plain", wanted))
                break
    return n, faults


# An independent, rough lexer: what each token must be, whatever stands around it.
TOKEN = re.compile(r'(?P<comment>#.*)|(?P<string>"(?:\\.|[^"\\])*")|(?P<number>(?<![\w.])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?:[ \t]*[A-Za-z]+/s\b)?)|(?P<word>[A-Za-z_]\w*)|'
                   r'(?P<operator>->|==|!=|<=|>=|[-+*/=<>])|(?P<bracket>[()\[\]{}])')
WANTED = {"comment": "comment.line.number-sign", "string": "string.quoted.double", "number": "constant.numeric", "operator": "keyword.operator", "bracket": "punctuation"}


def check_file(engine, path):
    with open(path, encoding="utf-8") as file:
        lines, scopes = tokenise(engine, file.read())
    name, faults, n = os.path.relpath(path, ROOT), [], 0
    for number, line in enumerate(lines):
        for match in TOKEN.finditer(line):
            n += 1
            kind, text = match.lastgroup, match.group(0)
            stack = scopes[number][match.start()]
            wanted = WANTED.get(kind) if kind != "word" else "keyword.other." + text if text in RESERVED else None
            place = "%s:%d:%d" % (name, number + 1, match.start() + 1)
            if text == "on" and has_scope(stack, "keyword.other"):
                wanted = "keyword.other"
            if wanted and not has_scope(stack, wanted):
                faults.append("%s: `%s` is %s, not %s" % (place, text, " ".join(stack[1:]) or "plain", wanted))
            elif len(stack) < 2:
                faults.append("%s: `%s` has no scope" % (place, text))
            if any(scope.startswith("invalid.") for scope in stack):
                faults.append("%s: `%s` is shown as a mistake" % (place, text))
    return n, faults


def check_lists(engine):
    """Every unit of units.def and every keyword of keywords.def is known to the grammar, in its place."""
    faults, n = [], 0
    def read(path):
        with open(os.path.join(ROOT, "compiler/syntax", path), encoding="utf-8") as file:
            return file.read()
    for unit in re.findall(r'UNIT\("([^"]+)"\)', read("units.def")):
        n += 1
        _, scopes = tokenise(engine, "gpu A {\n    memory 8 %s\n}\n" % unit)
        if not all(has_scope(stack, "keyword.other.unit") for stack in scopes[1][13:13 + len(unit)]):
            faults.append("units.def: `%s` is not shown as a unit" % unit)
    forms = {"import": "import nn", "const": "const a = 1", "gpu": "gpu A {\n}", "cluster": "cluster a {\n}", "layer": "layer f(x: [...]) {\n}", "model": "model M {\n}",
             "train": "train {\n}", "plan": "plan p {\n}", "dim": "dim a = 1", "factors": "factors a = (b, c)", "input": "input x: int[batch]", "target": "target y: int[batch]",
             "weight": "weight w: [a] = ones", "repeat": "repeat layers {\n}", "if": "if a {\n}", "else": "} else {", "return": "return x", "auxiliary": "auxiliary x",
             "log": "log x", "names": "names transformers {\n}", "mesh": "mesh data = 2", "in": "in layers 0..3 {\n}"}
    for word, place in re.findall(r'KEYWORD\("(\w+)", \w+, (\w+)', read("keywords.def")):
        n += 1
        form = forms.get(word)
        before = {"PLACE_TOP": "", "PLACE_TENSORS": "model M {\n", "PLACE_PLAN": "plan p {\n"}[place] + ("if a {\n" if word == "else" else "")
        lines, scopes = tokenise(engine, before + (form or word) + "\n")
        line = before.count("\n")
        stack = scopes[line][lines[line].index(word)] if form else ()
        if not (has_scope(stack, "keyword") or has_scope(stack, "storage.type")):
            faults.append("keywords.def: `%s` is not shown as a keyword" % word)
    return n, faults


def main():
    if "--inside" not in sys.argv:
        in_environment()
    engine = Engine(os.path.join(ROOT, "grammar/textmate/plan.tmLanguage.json"))
    results = [("stated scopes", check_stated(engine)), ("words of the compiler's lists", check_lists(engine))]
    for pattern in ("examples/*.plan", "stdlib/**/*.plan", "tests/golden/**/*.plan"):
        for path in sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True)):
            results.append((os.path.relpath(path, ROOT), check_file(engine, path)))
    failed = 0
    for what, (n, faults) in results:
        print("%s: %d checked, %d wrong" % (what, n, len(faults)))
        for fault in faults[:20]:
            print("    " + fault)
        failed += len(faults) + (n == 0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
