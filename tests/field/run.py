#!/usr/bin/env python3
"""Cases from the field that `plc check` decides: each .plan file here says in comments which diagnostics it must give.

The files are named after the case in docs/field-cases.md; the comments are those of tests/errors/run.py. What is not built
yet (P9000) is passed over, so a file keeps its meaning when a feature arrives. Then every test that docs/field-cases.md names
must exist, and every file here must be named there.

usage: run.py PLC [FILE...]
"""
import importlib.util
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NO_CASE = {"models.plan"}


def check_table():
    """Faults of docs/field-cases.md: `file` or `file:name` must exist, with that name in it; each case has one row."""
    with open(os.path.join(ROOT, "docs", "field-cases.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| ([A-Z]\d\d) \|(.*)\|$", file.read(), re.M)
    faults, named = [], set()
    for case, row in rows:
        tests = re.findall(r"`(tests/[^`:]+)(?::(\w+))?`", row.rsplit("|", 1)[1])
        faults += ["%s names no test" % case] if not tests else []
        for path, name in tests:
            named.add(os.path.basename(path))
            try:
                with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                    if name and not re.search(r"\b%s\b" % name, file.read()):
                        faults.append("%s: %s holds no `%s`" % (case, path, name))
            except OSError as error:
                faults.append("%s: %s: %s" % (case, path, error.strerror))
    cases = [case for case, _ in rows]
    faults += ["%s has two rows" % case for case in sorted(set(cases)) if cases.count(case) > 1]
    plans = {name for name in os.listdir(HERE) if name.endswith(".plan")} - NO_CASE
    faults += ["no case names tests/field/%s" % name for name in sorted(plans - named)]
    print("\n".join(faults + ["%d cases, %d faults" % (len(rows), len(faults))]))
    return 1 if faults or not rows else 0


def main():
    path = os.path.join(os.path.dirname(HERE), "errors", "run.py")
    spec = importlib.util.spec_from_file_location("error_goldens", path)
    goldens = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(goldens)
    goldens.HERE = HERE
    return goldens.main() or check_table()


if __name__ == "__main__":
    sys.exit(main())
