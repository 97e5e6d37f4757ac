"""Programs of frameworks that train on torch.distributed, in frameworks/: the backend's name is the only word that differs,
and they come out as on gloo. By hand, because it takes minutes, with an interpreter that has the frameworks:

    python3 -m venv build/frameworks && build/frameworks/bin/pip install torch accelerate lightning "ray[train]" deepspeed torchft
    TUTTI_PYTHON=build/frameworks/bin/python tests/torch/run.sh build/libtutti.so.0 tests/torch/frameworks.py
"""
import importlib.util
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import prerequisites
import ranks

prerequisites.require()
PROGRAMS = Path(__file__).resolve().parent / "frameworks"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def result(name, backend, start):
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
    command = [sys.executable, *start, str(PROGRAMS / f"with_{name}.py"), backend]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    # Ray prints it more than once.
    found = set(re.findall(r"result (.*)", done.stdout))
    if done.returncode or len(found) != 1:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return found.pop()


class Frameworks(unittest.TestCase):
    def check(self, name, start=TORCHRUN):
        if importlib.util.find_spec(name) is None:
            self.skipTest(f"{sys.executable} has no {name}")
        theirs, ours = result(name, "gloo", start), result(name, "tutti", start)
        print(name, ours)
        self.assertEqual(ours, theirs)

    def test_accelerate(self):
        self.check("accelerate")

    def test_lightning(self):
        self.check("lightning")

    def test_deepspeed(self):
        self.check("deepspeed")

    def test_ray(self):
        self.check("ray", [])

    def test_torchft(self):
        self.check("torchft", [])


if __name__ == "__main__":
    ranks.main()
