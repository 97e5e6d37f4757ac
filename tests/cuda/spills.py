"""No GPU kernel spills registers, except a few for sums of 8-bit integers, which gain more from more blocks at once
(kernels/cuda/jobs.h): the arguments are logs of kernels/cuda/compile.py."""
import re
import sys

MOST_STACK_BYTES = 64  # for these sums
SUMS_OF_8_BITS = re.compile(r"jobs::reduce<(0|1)\b")  # int8, uint8


def complaints_of(lines):
    found = []
    for line in lines:
        arch, registers, stack, spilled, name = line.split(maxsplit=4)
        most = MOST_STACK_BYTES if SUMS_OF_8_BITS.search(name) else 0
        if int(stack) > most or (int(spilled) and not most):
            found.append(f"{name.strip()} for {arch}: {spilled} bytes spilled, {stack} bytes of stack, {registers} registers")
    return found


def main():
    if len(sys.argv) == 1:
        print("skipped: built without nvcc")
        sys.exit(77)
    for planted in ("16 0 planted", "0 8 planted", "0 8 void jobs::reduce<7>(JobList)", "72 8 void jobs::reduce<1, x>(JobList)"):
        if not complaints_of([f"sm_90 64 {planted}"]):
            sys.exit(f"a planted spill was not found: {planted}")
    lines = [line for log in sys.argv[1:] for line in open(log, encoding="utf-8")]
    found = complaints_of(lines)
    print("".join(lines))
    print("\n".join(found))
    print(f"{len(lines)} kernels, {len(found)} spill")
    sys.exit(1 if found or not lines else 0)


if __name__ == "__main__":
    main()
