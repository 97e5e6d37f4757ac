"""Runs a test program on the kernels' real PTX (real_kernels.cpp): it has to pass, and to have run all kernels and
most of their lines. counts.py PROGRAM [ARGUMENTS]"""
import re
import subprocess
import sys

LEAST_PERCENT = 95
COUNTS = re.compile(r"PTX: kernels run (\d+) of (\d+), lines run \d+ of \d+ \(([0-9.]+) %\)")


def complaint_of(output):
    counts = COUNTS.findall(output)
    if not counts:
        return "it did not tell what it ran"
    run, kernels, percent = max(counts, key=lambda count: float(count[2]))  # children print theirs, too
    if run != kernels or int(run) == 0:
        return f"it ran {run} of {kernels} kernels"
    return f"it ran {percent} % of the lines, less than {LEAST_PERCENT}" if float(percent) < LEAST_PERCENT else None


def main():
    if len(sys.argv) == 1:
        print("skipped: built without nvcc, so there is no PTX of the kernels")
        sys.exit(77)
    for planted in ["", "PTX: kernels run 66 of 67, lines run 99 of 99 (100.00 %)",
                    "PTX: kernels run 67 of 67, lines run 94 of 99 (94.95 %)"]:
        if not complaint_of(planted):
            sys.exit(f"a planted shortage was not found: {planted}")
    done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    complaint = complaint_of(done.stdout)
    if complaint:
        print(complaint)
    sys.exit(done.returncode or (1 if complaint else 0))


if __name__ == "__main__":
    main()
