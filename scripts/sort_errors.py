#!/usr/bin/env python3
"""Brings docs/errors.md into order: its entries `## P0301: title`, sorted by code.

    sort_errors.py [--check]      --check: say whether something would change (exit 1), change nothing

A code that stands twice is an error; text before the first entry of docs/errors.md is kept.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BOOK = os.path.join(ROOT, "docs", "errors.md")
HEAD = """# Error codes

Every diagnostic of `plc` has a code; `plc explain P0301` prints its entry. The first two digits say where it comes from:
P00 the text, P01 names and declarations, P02 types and shapes, P03 sizes, P04 plans, P05 training runs and data, P06 memory and
machines, P07 schedules, P08 output and environment; P9000 is for what is not built yet.
"""
ENTRY = re.compile(r"^## (P\d{4}): (.*)$", re.M)


def entries(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    found = list(ENTRY.finditer(text))
    for match, after in zip(found, found[1:] + [None]):
        yield match.group(1), text[match.start():after.start() if after else len(text)].rstrip() + "\n"


def merged():
    """The text that docs/errors.md should have."""
    book, where = {}, {}
    for path in [BOOK] if os.path.exists(BOOK) else []:
        for code, text in entries(path):
            if code in book and book[code] != text and where[code] != BOOK:
                sys.exit("%s stands in %s and in %s" % (code, os.path.relpath(where[code], ROOT), os.path.relpath(path, ROOT)))
            book[code], where[code] = text, path
    return HEAD + "".join("\n" + book[code] for code in sorted(book))


def main():
    text = merged()
    before = open(BOOK, encoding="utf-8").read() if os.path.exists(BOOK) else ""
    if "--check" in sys.argv:
        print("docs/errors.md is in order" if text == before else "docs/errors.md is not in order: run scripts/sort_errors.py")
        return 0 if text == before else 1
    with open(BOOK, "w", encoding="utf-8") as file:
        file.write(text)
    print("%d entries" % len(ENTRY.findall(text)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
