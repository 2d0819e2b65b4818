#!/usr/bin/env python3
"""The VS Code folder is complete: what package.json names is there, and its grammar is the tested one.

    vscode.py ROOT
"""
import json
import os
import sys


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def main():
    grammar = os.path.join(sys.argv[1], "grammar")
    folder = os.path.join(grammar, "vscode")
    package = json.loads(read(folder, "package.json"))
    faults = ["package.json has no `%s`" % field for field in ("name", "publisher", "version", "engines", "contributes") if not package.get(field)]
    language, contributed = package["contributes"]["languages"][0], package["contributes"]["grammars"][0]
    for path in (language["configuration"], contributed["path"]):
        if not os.path.isfile(os.path.join(folder, path)):
            faults.append("package.json names %s, which is missing" % path)
    original, copy = read(grammar, "textmate", "plan.tmLanguage.json"), read(folder, contributed["path"])
    if original != copy:
        faults.append("vscode/%s is not the grammar of textmate/: copy it" % contributed["path"])
    if json.loads(original)["scopeName"] != contributed["scopeName"] or language["id"] != contributed["language"]:
        faults.append("package.json and the grammar disagree on their names")
    configuration = json.loads(read(folder, language["configuration"]))
    if configuration["comments"]["lineComment"] != "#" or ".plan" not in language["extensions"]:
        faults.append("comments or the file extension are wrong")
    print("\n".join(faults) or "the VS Code folder is complete")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
