"""tools/torch/torch_perf.py: it measures every operation, with one tensor size and several, and checks the results."""
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import prerequisites
import ranks

prerequisites.require("numpy")
PROGRAM = Path(__file__).resolve().parents[2] / "tools/torch/torch_perf.py"


class Perf(unittest.TestCase):
    def measure(self, *options):
        command = [sys.executable, str(PROGRAM), "--peers", "", "--repeats", "1", "--seconds", "0.001", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=os.environ)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [[float(word) for word in line.split()] for line in done.stdout.splitlines() if re.match(r" *\d", line)]

    def test_all_reduce(self):
        rows = self.measure("-e", "4K", "-f", "64", "--bind")
        self.assertEqual([row[0] for row in rows], [8, 512])
        for _, ordinary, direct, gloo, *ratios in rows:
            self.assertGreater(min(ordinary, direct, gloo), 0)
            self.assertEqual(len(ratios), 2)

    def test_others(self):
        for operation in ("broadcast", "reduce", "all_gather", "reduce_scatter", "barrier"):
            with self.subTest(operation):
                rows = self.measure("--op", operation, "-b", "1K", "-e", "1K")
                self.assertEqual([row[0] for row in rows], [0 if operation == "barrier" else 1024])


if __name__ == "__main__":
    ranks.main()
