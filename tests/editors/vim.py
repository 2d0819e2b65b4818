#!/usr/bin/env python3
"""The Vim syntax, indentation and `:make`, run by Vim without a screen.

    vim.py ROOT [PLC]

1. scopes.plan: what stands behind `|` is the group that Vim must link the characters to.
2. Every .plan file of examples and library: comments, texts, numbers and reserved words are shown as such.
3. A file without its indentation gets it back.
4. `:make` finds the place of an error.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(sys.argv[1])
PLC = sys.argv[2] if len(sys.argv) > 2 else None
HERE = os.path.dirname(os.path.abspath(__file__))
RESERVED = ["over", "on", "using", "padded", "uneven", "repeated", "along"]
TOKEN = re.compile(r'(?P<Comment>#.*)|(?P<String>"(?:\\.|[^"\\])*")|(?P<Float>(?<![\w.])(?:\d+\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)(?!\w))|(?P<Number>(?<![\w.])\d+(?!\w))|(?P<word>[A-Za-z_]\w*)')

SCRIPT = r"""
set nocompatible
set runtimepath^=%(grammar)s
syntax on
filetype plugin indent on
function! Groups(path)
  execute 'edit ' . fnameescape(a:path)
  let rows = []
  for lnum in range(1, line('$'))
    let row = []
    for column in range(1, len(getline(lnum)))
      call add(row, synIDattr(synID(lnum, column, 1), 'name'))
    endfor
    call add(rows, row)
  endfor
  return rows
endfunction
let files = json_decode(join(readfile('%(list)s'), ''))
let result = {'groups': {}, 'indented': {}, 'filetype': ''}
for path in files
  let result.groups[path] = Groups(path)
  let result.filetype = &filetype
  silent! %%s/^\s\+//
  silent normal! gg=G
  let result.indented[path] = getline(1, '$')
  edit!
endfor
%(make)s
call writefile([json_encode(result)], '%(out)s')
qall!
"""
MAKE = r"""
execute 'edit ' . fnameescape('%s')
let &l:makeprg = '%s check %%:S'
silent make!
let result.quickfix = map(getqflist(), {_, item -> [item.lnum, item.col, item.nr, item.text, bufname(item.bufnr)]})
"""


def run_vim(paths, broken):
    with tempfile.TemporaryDirectory() as folder:
        names = {"grammar": os.path.join(ROOT, "grammar/vim"), "list": os.path.join(folder, "list"), "out": os.path.join(folder, "out"),
                 "make": MAKE % (broken, PLC) if PLC else ""}
        with open(names["list"], "w", encoding="utf-8") as file:
            json.dump(paths, file)
        script = os.path.join(folder, "script.vim")
        with open(script, "w", encoding="utf-8") as file:
            file.write(SCRIPT % names)
        done = subprocess.run(["vim", "-u", "NONE", "-i", "NONE", "-n", "-es", "-S", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
        if not os.path.exists(names["out"]):
            sys.exit("vim did not finish: %s%s" % (done.stdout, done.stderr))
        with open(names["out"], encoding="utf-8") as file:
            result = json.load(file)
    with open(os.path.join(ROOT, "grammar/vim/syntax/plan.vim"), encoding="utf-8") as file:
        links = dict(re.findall(r"highlight default link (\w+) (\w+)", file.read()))
    for rows in result["groups"].values():
        for row in rows:
            row[:] = [links.get(name, "") for name in row]
    return result


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return file.read().rstrip("\n").split("\n")


def check_stated(lines, groups):
    faults, n, last = [], 0, 0
    for number, line in enumerate(lines):
        arrow = re.match(r"# <- \S+ \| (\w+)", line)
        carets = re.match(r"#( *)(\^+) \S+ \| (\w+)", line)
        if not re.match(r"# <- |# *\^", line):
            last = number
        if arrow or carets:
            n += 1
            first, width = (0, len(re.match(r"\w+|#", lines[last]).group(0))) if arrow else (1 + len(carets.group(1)), len(carets.group(2)))
            wanted = arrow.group(1) if arrow else carets.group(3)
            wrong = [groups[last][i] for i in range(first, first + width) if groups[last][i] != wanted]
            if wrong:
                faults.append("scopes.plan:%d:%d: `%s` is %s, not %s" % (last + 1, first + 1, lines[last][first:first + width], wrong[0] or "plain", wanted))
    return n, faults


def check_file(name, lines, groups):
    faults, n = [], 0
    for number, line in enumerate(lines):
        for match in TOKEN.finditer(line):
            kind, text = match.lastgroup, match.group(0)
            wanted = kind if kind != "word" else "Keyword" if text in RESERVED else None
            found = groups[number][match.start()]
            n += 1
            if (wanted and found != wanted) or found == "Error":
                faults.append("%s:%d:%d: `%s` is %s, not %s" % (name, number + 1, match.start() + 1, text, found or "plain", wanted))
    return n, faults


def check_indent(name, lines, indented):
    return len(lines), ["%s:%d: re-indented to %r" % (name, i + 1, new) for i, (old, new) in enumerate(zip(lines, indented)) if old != new]


def main():
    if not shutil.which("vim"):
        sys.exit("vim is not installed (scripts/packages.txt names the package)")
    stated = os.path.join(HERE, "scopes.plan")
    paths = [stated] + sorted(glob.glob(os.path.join(ROOT, "examples/*.plan")) + glob.glob(os.path.join(ROOT, "stdlib/**/*.plan"), recursive=True))
    with tempfile.TemporaryDirectory() as folder:
        broken = os.path.join(folder, "broken.plan")
        with open(broken, "w", encoding="utf-8") as file:
            file.write("import nn\n\ntrain {\n    batch 8 9\n}\n")
        result = run_vim(paths, broken)
    checks = []
    for path in paths:
        name, lines = os.path.relpath(path, ROOT), read_lines(path)
        checks.append((name, check_stated(lines, result["groups"][path]) if path == stated else check_file(name, lines, result["groups"][path])))
        if path != stated:
            checks.append((name + ", indentation", check_indent(name, lines, result["indented"][path])))
    checks.append(("file type", (1, [] if result["filetype"] == "plan" else ["the file type is `%s`" % result["filetype"]])))
    if PLC:
        found = [item for item in result["quickfix"] if item[0] == 4 and item[1] == 13 and "takes one value" in item[3] and item[4].endswith("broken.plan")]
        checks.append((":make", (1, [] if found else ["the quickfix list is %s" % result["quickfix"]])))
    failed = 0
    for what, (n, faults) in checks:
        print("%s: %d checked, %d wrong" % (what, n, len(faults)))
        for fault in faults[:20]:
            print("    " + fault)
        failed += len(faults) + (n == 0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
