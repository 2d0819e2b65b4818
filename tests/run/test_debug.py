#!/usr/bin/env python3
"""Machine code of a built program maps to lines of the .plan file: asked with addr2line, and with gdb at a breakpoint.

usage: test_debug.py PLC [-v] [TEST...]
"""
import os, re, unittest, shutil

import plan_testing as t

TEXT = """model Lines {
    dim layers = 2, embed = 48, vocab = 256, seq = 24
    input  tokens: int[batch, seq]
    target labels: int[batch, seq] = next(tokens)
    weight table: [vocab, embed] = normal(0.1)
    x = lookup(table, tokens)
    repeat layers {
        weight w: [embed] = ones
        x = tanh(x * w)
    }
    y = x / sqrt(mean(x * x, over embed) + 0.001)
    loss = cross_entropy(dot(y, table, over embed), labels, over vocab)
}
train {
    model     Lines
    data      text("/usr/share/common-licenses/*")
    batch     4
    steps     3
    optimizer sgd(lr = 0.1)
    seed      1
}
plan single {
}
"""


def line_of(text, what):
    return next(i for i, line in enumerate(text.split("\n"), 1) if what in line)


class Debug(t.Case):
    def kernels(self, program):
        """(name, address, bytes) of the generated kernels."""
        out = []
        for line in t.run(["nm", "-S", program]).splitlines():
            part = line.split()
            if len(part) == 4 and re.match(r"(F|B|update|init)\.", part[3]):
                out.append((part[3], int(part[0], 16), int(part[1], 16)))
        self.assertGreater(len(out), 5)
        return out

    def lines(self, program, source):
        """Lines of `source` by kernel: of every fourth byte of its code, so every instruction that is not tiny is asked."""
        asked = [(name, at) for name, address, size in self.kernels(program) for at in range(address, address + size, 4)]
        found = t.run(["addr2line", "-e", program, *("0x%x" % at for _, at in asked)]).splitlines()
        self.assertEqual(len(found), len(asked))
        by_name = {}
        for (name, _), place in zip(asked, found):
            path, line = place.split(" ")[0].rsplit(":", 1)
            if path.endswith(source) and line.isdigit():
                by_name.setdefault(name, set()).add(int(line))
        return by_name

    def check(self, text, name):
        program = self.build(text, name)
        lines = self.lines(program, name + ".plan")
        of = lambda entry: set().union(*(v for k, v in lines.items() if k.startswith(entry + ".")))
        body, norm, loss = (line_of(text, what) for what in ("tanh", "sqrt", "cross_entropy"))
        self.assertLessEqual({body, norm, loss}, of("F"))
        self.assertLessEqual({body, norm}, of("B"))
        self.assertLessEqual({line_of(text, "weight table")}, of("init"))
        statements = {i for i, line in enumerate(text.split("\n"), 1) if re.search(r" = |layers|plan|model", line)}
        self.assertLessEqual(of("F") | of("B") | of("init"), statements)
        return program

    def test_addresses_are_lines(self):
        self.check(TEXT, "straight")

    def test_lines_move_with_the_text(self):
        self.check("# a comment\n\n" * 20 + TEXT, "moved")

    def test_library_layers(self):
        program = self.build(os.path.join(t.EXAMPLES, "01-quickstart.plan"), "quick")
        with open(os.path.join(t.ROOT, "stdlib", "nn.plan")) as f:
            library = f.read().split("\n")
        lines = set().union(*self.lines(program, "nn.plan").values())
        for what in ("return layer_norm(", "y = dot(activation(h), down"):
            self.assertTrue(any(what in library[line - 1] for line in lines), what)

    @unittest.skipUnless(shutil.which("gdb"), "gdb is not installed")
    def test_gdb_stops_at_a_line(self):
        program = self.build(TEXT, "stopped")
        place = "stopped.plan:%d" % line_of(TEXT, "tanh")
        said = t.run(["gdb", "-batch", "-nx", "-ex", "break " + place, "-ex", "info line " + place, program], cwd=self.dir)
        self.assertRegex(said, r"Breakpoint 1 at 0x\w+: (.*\n)?.*stopped\.plan")
        self.assertRegex(said, r"starts at address 0x\w+ <[FB]\.")


if __name__ == "__main__":
    t.main()
