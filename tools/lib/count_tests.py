"""Counts the results in meson's testlog.json: prints "PASSED FAILED SKIPPED", and on stderr what was skipped or failed,
the latter with the end of its output.

A Catch2 program counts as its test cases, taken from the summary that it prints; any other test counts as one. A case that
warns of what is "skipped: ..." counts as skipped; of another test each line "skipped: ..." counts, besides the test. A program that ends badly (crash, time limit, sanitizer report) counts as
one failure at least.

A second log is of failed tests that were run again, each by itself and several times: one that passed each time is told of
as unsteady, with the output of its failure, and counts as what it did then. A sanitizer's report stays a failure.

  count_tests.py LOG [LOG_OF_SECOND_RUN]
  count_tests.py --failed LOG               prints which to run again, as `meson test` takes it
"""
import json
import re
import sys

AGAIN = 3  # times that an unsteady test must pass alone


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


def warned(output):
    """What a Catch2 program's cases report as skipped: {name of the case: its last such warning}."""
    found, case = {}, ""
    for name, skipped in re.findall(r"^-{79}\n(\S.*)\n(?:.*\S.*\n)*?-{79}$|: \n?warning:\n  skipped: (.*)$", output, re.M):
        case = name or case
        if skipped:
            found[case] = skipped
    return found


def told(output):
    """What a test that is no Catch2 program says it has left out."""
    return re.findall(r"^skipped: (.*)$", output, re.M)


def last_line(output):
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def end_of_output(test, lines_of_each=30):
    """The last lines of what the test printed to stdout and to stderr, indented."""
    lines = []
    for stream in "stdout", "stderr":
        lines += test.get(stream, "").splitlines()[-lines_of_each:]
    return "".join(f"    {line}\n" for line in lines)


def read(path):
    with open(path, encoding="utf-8") as log:
        return [json.loads(line) for line in log if line.strip()]


def has_failed(test):
    return test["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")


def is_unsteady(test, runs):
    report = re.search(r"(Thread|Address|Leak)Sanitizer|runtime error: ", test.get("stdout", "") + test.get("stderr", ""))
    return not report and len(runs) >= AGAIN and all(run["result"] == "OK" for run in runs)


def tell(what, test):
    print(f"  {what}: {test['name']} ({test['result']}, exit status {test.get('returncode')})", file=sys.stderr)
    print(end_of_output(test), end="", file=sys.stderr)


def count(test):
    cases = catch_cases(test.get("stdout", ""))
    passed, failed, skipped = cases or (0, 0, 0)
    if test["result"] == "SKIP":
        return 0, 0, 1
    if test["result"] == "EXPECTEDFAIL":
        return 1, 0, 0
    if has_failed(test):
        return passed, max(failed, 1), skipped
    if not cases:
        return 1, 0, len(told(test.get("stdout", "")))
    unseen = min(passed, len(warned(test.get("stdout", ""))))
    return passed - unseen, failed, skipped + unseen


def main():
    if sys.argv[1] == "--failed":
        # "project:suites / name"
        print(*(re.sub(":.*? / ", ":", test["name"], count=1) for test in read(sys.argv[2]) if has_failed(test)), sep="\n")
        return
    again = {}
    for test in read(sys.argv[2]) if len(sys.argv) > 2 else []:
        again.setdefault(test["name"], []).append(test)
    total = [0, 0, 0]
    for test in read(sys.argv[1]):
        second = again.get(test["name"], [])
        if test["result"] == "SKIP":
            print(f"  skipped: {test['name']}: {last_line(test.get('stdout', ''))}", file=sys.stderr)
        elif has_failed(test) and is_unsteady(test, second):
            tell(f"unsteady, but passed {len(second)} of {len(second)} by itself", test)
            test = second[-1]
        elif has_failed(test):
            tell("failed", test)
        else:
            for case, reason in warned(test.get("stdout", "")).items():
                print(f"  skipped: {test['name']}, {case}: {reason}", file=sys.stderr)
            for reason in [] if catch_cases(test.get("stdout", "")) else told(test.get("stdout", "")):
                print(f"  skipped: {test['name']}: {reason}", file=sys.stderr)
        total = [sum(pair) for pair in zip(total, count(test))]
    print(*total)


if __name__ == "__main__":
    main()
