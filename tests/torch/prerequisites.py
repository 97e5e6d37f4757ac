"""What every test in this folder needs: a recent enough torch, and libtutti. Without them a test is skipped."""
from __future__ import annotations

import importlib.util
import re
import sys
import unittest
from importlib import metadata

BACKEND = "tutti"
OLDEST = (2, 9)


class Result(unittest.TextTestResult):
    """Also prints what is skipped in the way that tools/check counts."""

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        print(f"skipped: {test}: {reason}")


unittest.TextTestRunner.resultclass = Result


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(77)


def require(*modules: str) -> None:
    """Ends the test if torch, or one of these modules, cannot be imported."""
    hint = "(tools/check --torch installs it into build/; or set TUTTI_PYTHON to an interpreter that has it)"
    for module in ("torch", *modules):
        if importlib.util.find_spec(module) is None:
            skip(f"{sys.executable} has no {module} {hint}")
    version = metadata.version("torch")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        skip(f"torch {version} is older than {'.'.join(map(str, OLDEST))} {hint}")
