#!/usr/bin/env python3
"""C files of compiler/ and runtime/ are as clang-format writes them, with the version that .clang-format was tuned for.

    format.py ROOT      exit 77 (skipped) without that version
"""
import os
import re
import shutil
import subprocess
import sys

VERSION = "14"


def main():
    root = sys.argv[1]
    tool = shutil.which("clang-format-" + VERSION) or shutil.which("clang-format")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout if tool else ""
    if not re.search(r"version %s\." % VERSION, version):
        print("skipped: clang-format %s is not installed" % VERSION)
        return 77
    files = [os.path.join(folder, name) for top in ("compiler", "runtime") for folder, _, names in os.walk(os.path.join(root, top))
             for name in names if name.endswith((".c", ".h"))]
    wrong = []
    for path in sorted(files):
        if subprocess.run([tool, "--dry-run", "-Werror", path], capture_output=True, check=False).returncode:
            wrong.append(os.path.relpath(path, root))
    for path in wrong:
        print("not formatted: %s" % path)
    print("%d files, %d not formatted (`clang-format -i` does it)" % (len(files), len(wrong)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
