"""tools/torch/torch_perf.py: it measures every operation, with one tensor size and several, and checks the results."""
import importlib.util
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

    def test_wrong_arguments(self):
        for wrong in (["-b", "0"], ["-f", "1"], ["--repeats", "0"]):
            done = subprocess.run([sys.executable, str(PROGRAM), *wrong], capture_output=True, text=True, timeout=200, check=False)
            self.assertEqual((done.returncode, "at least" in done.stderr), (2, True), done.stderr)
        for wrong in ("", "8x"):
            done = subprocess.run([sys.executable, str(PROGRAM), "-b", wrong], capture_output=True, text=True, timeout=200, check=False)
            self.assertEqual((done.returncode, f"size_of value: '{wrong}'" in done.stderr), (2, True), done.stderr)

        for option, wrong, said in (("--ranks", "2,x", "ranks_of value: '2,x'"), ("--ranks", "0", "ranks_of value: '0'"),
                                    ("--peers", "vllm,foo", "--peers foo: must be of deepspeed, vllm")):
            done = subprocess.run([sys.executable, str(PROGRAM), option, wrong], capture_output=True, text=True, timeout=200, check=False)
            self.assertEqual((done.returncode, said in done.stderr), (2, True), done.stderr)

    def test_what_does_nothing_is_wrong(self):
        import torch

        spec = importlib.util.spec_from_file_location("torch_perf", PROGRAM)
        perf = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(perf)
        for operation in ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"):
            with self.subTest(operation), self.assertRaisesRegex(SystemExit, "elements are wrong"):
                for rank in (0, 1):  # a broadcast's root and a reduce's other ranks have nothing to do
                    perf.check("idle", operation, lambda output, source: None, torch.zeros(4), torch.zeros(2), rank, 2)


if __name__ == "__main__":
    ranks.main()
