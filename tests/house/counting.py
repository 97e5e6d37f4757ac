"""tools/check counts results: made-up results of every kind, counted by tools/lib/count_tests.py."""
import json
import os
import subprocess
import sys
import tempfile

import tree

V2_MIXED = "===\ntest cases:    25 |    22 passed | 2 failed | 1 failed as expected\nassertions: 90 | 87 passed | 3 failed\n"
V3_MIXED = "test cases: 4 | 3 passed | 1 skipped\nassertions: 9 | 9 passed\n"
PASSED = "All tests passed (905 assertions in 18 test cases)\n"
RULE = "-" * 79 + "\n"
HEADER = RULE + "%s\n" + RULE + "a_test.cpp:3\n" + "." * 79 + "\n\n"
WARNED = "".join((  # two skips in one case, one in another, and a warning of something else
    HEADER % "a", "a_test.cpp:4: \nwarning:\n  skipped: no 1\n\n",
    HEADER % "a", "a_test.cpp:4: \nwarning:\n  skipped: no 2\n\n",
    HEADER % "b of two\nlines\n  section", "a_test.cpp:9: warning:\n  slow\n\na_test.cpp:9: warning:\n  skipped: no 3\n\n",
    HEADER % "c", "a_test.cpp:14: warning:\n  slow\n\n"))
CASES = [  # result, output, (passed, failed, skipped)
    ("OK", PASSED, (18, 0, 0)),
    ("OK", "All tests passed (1 assertion in 1 test case)\n", (1, 0, 0)),
    ("OK", V3_MIXED, (3, 0, 1)),
    ("OK", WARNED + PASSED, (16, 0, 2)),
    ("OK", "ok: all is well\n", (1, 0, 0)),
    ("OK", "", (1, 0, 0)),
    ("OK", "ok a\nskipped: b: no root\nskipped: c: no ip\nok d, nothing skipped: all is well\n", (1, 0, 2)),
    ("OK", "skipped: what a case prints\n" + PASSED, (18, 0, 0)),
    ("FAIL", "skipped: b: no root\n", (0, 1, 0)),
    ("SKIP", "skipped: no network\n", (0, 0, 1)),
    ("EXPECTEDFAIL", "3 wrong\n", (1, 0, 0)),
    ("FAIL", V2_MIXED, (22, 2, 0)),
    ("FAIL", PASSED, (18, 1, 0)),  # a sanitizer's report at the end
    ("FAIL", "", (0, 1, 0)),
    ("TIMEOUT", "", (0, 1, 0)),
    ("ERROR", "", (0, 1, 0)),
]


# A test of the PyTorch backend that leaves out something: what unittest itself says of that is not counted.
TORCH = """import unittest
import prerequisites
class Planted(unittest.TestCase):
    def test_it(self):
        self.skipTest("no cc")
unittest.main()
"""

AGAIN = [  # the result of a second run alone, what a failed test that was (22, 2, 0) counts as then
    (["OK"] * 3, (18, 0, 0)),
    (["OK"] * 2, (22, 2, 0)),
    (["OK", "FAIL", "OK"], (22, 2, 0)),
    (["FAIL"] * 3, (22, 2, 0)),
    (["SKIP"] * 3, (22, 2, 0)),
]


def count(*logs):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(tree.ROOT / "tools/lib/count_tests.py")]
        for nth, tests in enumerate(logs):
            command.append(f"{folder}/{nth}")
            with open(command[-1], "w", encoding="utf-8") as log:
                for result, output, *_ in tests:
                    log.write(json.dumps({"name": "tutti:a / planted", "result": result, "stdout": output}) + "\n")
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        failed = subprocess.run([*command[:2], "--failed", command[2]], check=True, capture_output=True, text=True).stdout
    is_bad = [result for result, *_ in logs[0] if result not in ("OK", "SKIP", "EXPECTEDFAIL")]
    assert failed.split() == ["tutti:planted"] * len(is_bad), failed
    return tuple(int(number) for number in output.split())


def main():
    wrong = [f"{case}: counted as {count([case])}" for case in CASES if count([case]) != case[2]]
    total = tuple(sum(case[2][i] for case in CASES) for i in range(3))
    if count(CASES) != total:
        wrong.append(f"all together: {count(CASES)} instead of {total}")
    for second, expected in AGAIN:
        counted = count([("FAIL", V2_MIXED)], [(result, PASSED) for result in second])
        if counted != expected:
            wrong.append(f"failed, then {second}: counted as {counted} instead of {expected}")
    for report in "WARNING: ThreadSanitizer: data race", "ERROR: LeakSanitizer: leaks", "a.cpp:3: runtime error: shift":
        if count([("FAIL", PASSED + report)], [("OK", PASSED)] * 3) != (18, 1, 0):
            wrong.append(f"counted as unsteady: {report}")
    env = dict(os.environ, PYTHONPATH=str(tree.ROOT / "tests/torch"))
    said = subprocess.run([sys.executable, "-c", TORCH], env=env, check=True, capture_output=True, text=True).stdout
    if count([("OK", said)]) != (1, 0, 1):
        wrong.append(f"a test of the PyTorch backend that leaves out something says only: {said}")
    tree.finish(wrong, len(CASES) + 1 + len(AGAIN) + 3 + 1)


if __name__ == "__main__":
    main()
