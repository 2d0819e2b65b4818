#!/usr/bin/env python3
"""The error reference is complete: each code that the compiler can report has an entry, each entry a use, and `plc explain` prints it.

    errors.py ROOT PLC
"""
import glob
import os
import re
import subprocess
import sys

ROOT, PLC = os.path.abspath(sys.argv[1]), sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import sort_errors  # noqa: E402


def codes_in_sources():
    used = {}
    for pattern in ("compiler/**/*.c", "compiler/**/*.h", "grammar/plan.re", "grammar/plan.y"):
        for path in glob.glob(os.path.join(ROOT, pattern), recursive=True):
            with open(path, encoding="utf-8") as file:
                text = re.sub(r"^ ?/?\*.*$", "", file.read(), flags=re.M)
            for code in re.findall(r'"(P\d{4})"', text):
                used.setdefault(code, os.path.relpath(path, ROOT))
    return used


def main():
    faults = []
    text = sort_errors.merged()
    if not os.path.exists(sort_errors.BOOK) or open(sort_errors.BOOK, encoding="utf-8").read() != text:
        faults.append("docs/errors.md is not in order: run scripts/sort_errors.py")
    book = {match.group(1): match.group(2) for match in sort_errors.ENTRY.finditer(text)}
    used = codes_in_sources()
    faults += ["%s of %s has no entry in docs/errors.md" % (code, used[code]) for code in sorted(set(used) - set(book))]
    faults += ["%s has an entry, but nothing reports it" % code for code in sorted(set(book) - set(used))]
    for path in (sort_errors.BOOK, ) if os.path.exists(sort_errors.BOOK) else ():
        for code, entry in sort_errors.entries(path):
            shown = subprocess.run([PLC, "explain", code], capture_output=True, text=True, check=False)
            if shown.returncode or shown.stdout.strip() != entry[3:].strip():
                faults.append("`plc explain %s` does not print the entry (exit %d)" % (code, shown.returncode))
            if len(entry.split("\n", 1)[1].strip()) < 60:
                faults.append("the entry of %s says too little" % code)
    wrong = subprocess.run([PLC, "explain", "P9999"], capture_output=True, text=True, check=False)
    if wrong.returncode != 2:
        faults.append("`plc explain P9999` ends with %d, not 2" % wrong.returncode)
    print("\n".join(faults))
    print("%d codes reported, %d entries, %d faults" % (len(used), len(book), len(faults)))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
