#!/usr/bin/env python3
"""Cases from the field that `plc check` decides: each .plan file here says in comments which diagnostics it must give.

The files are named after the case in docs/field-cases.md; the comments are those of tests/errors/run.py. What is not built
yet (P9000) is passed over, so a file keeps its meaning when a feature arrives.

usage: run.py PLC [FILE...]
"""
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    path = os.path.join(os.path.dirname(HERE), "errors", "run.py")
    spec = importlib.util.spec_from_file_location("error_goldens", path)
    goldens = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(goldens)
    goldens.HERE = HERE
    return goldens.main()


if __name__ == "__main__":
    sys.exit(main())
