"""PyTorch's own tests of torch.distributed backends, from the installed torch, run on Tutti.

conformance.py [--ranks N] [--slice I/N] [NAME...]: NAME is a test's, or a part of it. Prints what was skipped and why,
then the counts; the exit status is 1 if a test failed.
"""
from __future__ import annotations

import argparse
import collections
import os
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path

import prerequisites


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="only tests whose name contains one of these")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--slice", default="1/1", metavar="I/N", help="only every N-th test, from the I-th on")
    parser.add_argument("--least", type=int, default=0, help="fail if fewer tests than this pass")
    parser.add_argument("--quiet", action="store_true", help="counts only")
    return parser.parse_args()


def load_tests(ranks: int, scratch: str) -> type[unittest.TestCase]:
    """The module reads its settings from the environment when it is imported."""
    os.environ.update(BACKEND=prerequisites.BACKEND, WORLD_SIZE=str(ranks), TEMP_DIR=scratch)
    os.environ["INIT_METHOD"] = f"file://{scratch}/rendezvous"
    Path(scratch, "barrier").touch()
    import torch._dynamo  # needed by DDP: imported once instead of in each forked rank
    import torch.multiprocessing
    from torch.testing._internal import common_distributed

    # The test decorators ask for these at import. "gpu" is also asked for by tests that need none; tests that do need one
    # look for it themselves.
    for feature in ("ddp", "subgroup", "plugin", "gpu"):
        common_distributed.DistTestCases.backend_feature[feature].add(prerequisites.BACKEND)
    from torch.testing._internal.distributed import distributed_test

    class TuttiTest(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    without_others_names(TuttiTest)
    return TuttiTest


# Reasons to skip tests that are meant for another backend, but need nothing that Tutti has not.
OTHERS_ONLY = re.compile(
    r"be one of \{'gloo'\}|Only MPI supports CPU all_to_all|Only Gloo backend supports sparse|Only gloo backend supports timeouts"
    r"|Only MPI supports all_to_all|GLOO Batch Send Recv|Only Nccl & Gloo backend support Dist"
)

# It expects gloo's message for a timeout of 1 ms, before the other ranks have destroyed the group; torch 2.13 skips it, too.
OTHERS_RACES = ("test_barrier_timeout_arg",)


def without_others_names(case: type[unittest.TestCase]) -> None:
    """Runs tests that are meant for one backend by name and skipped for all others."""
    for name in unittest.TestLoader().getTestCaseNames(case):
        function = getattr(case, name)
        if name not in OTHERS_RACES and OTHERS_ONLY.search(getattr(function, "__unittest_skip_why__", "")):
            function.__unittest_skip__ = False


class Result(unittest.TextTestResult):
    """Also records what passed, and prints how long each test took."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed.append(str(test))


def main() -> None:
    options = arguments()
    prerequisites.require("expecttest", "hypothesis", "numpy")
    which, parts = map(int, options.slice.split("/"))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        case = load_tests(options.ranks, scratch)
        names = unittest.TestLoader().getTestCaseNames(case)
        names = [name for name in names if not options.names or any(part in name for part in options.names)]
        suite = unittest.TestSuite(case(name) for name in names[which - 1 :: parts])
        result = unittest.TextTestRunner(resultclass=Result, verbosity=0 if options.quiet else 2).run(suite)
    reasons = collections.defaultdict(list)
    for test, reason in result.skipped:
        reasons[reason].append(str(test).split()[0])
    for reason, tests in sorted(reasons.items()):
        print(f"skipped {len(tests)}: {reason}\n    {' '.join(tests)}")
    failed = len(result.failures) + len(result.errors)
    passed = len(result.passed)
    print(f"{options.ranks} ranks, slice {options.slice}, {time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {failed} failed, {len(result.skipped)} skipped")
    if passed < options.least:
        print(f"fewer than {options.least} passed")
        failed += 1
    sys.exit(1 if failed or not suite.countTestCases() else 0)


if __name__ == "__main__":
    main()
