#!/usr/bin/env python3
"""`plc check` is quick, since it loads no code generator; a build loads it. (Other times are benchmarks: tests/bench.)

usage: test_time.py PLC [-v] [TEST...]
"""
import os, resource

import plan_testing as t


class Time(t.Case):
    def libraries(self, *arguments):
        """What the dynamic linker was asked for, by its own account."""
        _, out, err = t.run([t.PLC, *arguments], status=None, env={"LD_DEBUG": "files"})
        self.assertIn("libc.so", out + err)
        return out + err

    def test_check_loads_no_llvm(self):
        for example in sorted(os.listdir(t.EXAMPLES)):
            if example.endswith(".plan"):
                self.assertNotIn("libLLVM", self.libraries("check", os.path.join(t.EXAMPLES, example)))
        quick = os.path.join(t.EXAMPLES, "01-quickstart.plan")
        self.assertNotIn("libLLVM", self.libraries("build", quick, "--emit", "memory"))
        self.assertIn("libLLVM", self.libraries("build", quick, "-o", self.path("quick")))

    def test_check_takes_at_most_50_ms(self):
        """Of processor time, which a busy machine does not lengthen; the best of twenty."""
        spent = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        for example in ("01-quickstart", "02-gpt2"):
            best = 1e9
            for _ in range(20):
                before = spent()
                t.run([t.PLC, "check", os.path.join(t.EXAMPLES, example + ".plan")])
                best = min(best, spent() - before)
            self.assertLessEqual(best, 0.05, example)


if __name__ == "__main__":
    t.main()
