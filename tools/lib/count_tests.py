"""Counts the results in meson's testlog.json: prints "PASSED FAILED SKIPPED", and on stderr what was skipped or failed,
the latter with the end of its output.

A Catch2 program counts as its test cases, taken from the summary that it prints; any other test counts as one. A program
that ends badly (crash, time limit, sanitizer report) counts as one failure at least.
"""
import json
import re
import sys


def catch_cases(output):
    """(passed, failed, skipped) of a Catch2 summary, or None if there is none."""
    all_passed = re.findall(r"^All tests passed \(.* in (\d+) test cases?\)", output, re.M)
    if all_passed:
        return int(all_passed[-1]), 0, 0
    mixed = re.findall(r"^test cases: *\d+ \|(.*)$", output, re.M)
    if not mixed:
        return None
    counts = {what: int(number) for number, what in re.findall(r"(\d+) ([a-z ]+?)(?= *\||$)", mixed[-1].strip())}
    return counts.get("passed", 0), counts.get("failed", 0), counts.get("skipped", 0)


def last_line(output):
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def end_of_output(test, lines_of_each=30):
    """The last lines of what the test printed and of what it complained of, indented."""
    lines = []
    for stream in "stdout", "stderr":
        lines += test.get(stream, "").splitlines()[-lines_of_each:]
    return "".join(f"    {line}\n" for line in lines)


def main():
    total = [0, 0, 0]
    with open(sys.argv[1], encoding="utf-8") as log:
        tests = [json.loads(line) for line in log if line.strip()]
    for test in tests:
        output = test.get("stdout", "")
        result = test["result"]
        passed, failed, skipped = catch_cases(output) or (0, 0, 0)
        if result == "SKIP":
            passed, failed, skipped = 0, 0, 1
            print(f"  skipped: {test['name']}: {last_line(output)}", file=sys.stderr)
        elif result == "EXPECTEDFAIL":
            passed, failed, skipped = 1, 0, 0
        elif result != "OK":
            failed = max(failed, 1)
            print(f"  failed: {test['name']} ({result}, exit status {test.get('returncode')})", file=sys.stderr)
            print(end_of_output(test), end="", file=sys.stderr)
        elif catch_cases(output) is None:
            passed = 1
        total = [total[0] + passed, total[1] + failed, total[2] + skipped]
    print(*total)


if __name__ == "__main__":
    main()
