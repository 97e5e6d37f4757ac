"""No kernel for the GPU puts registers aside (spills them): the arguments are logs of kernels/cuda/compile.py."""
import sys


def complaints_of(lines):
    found = []
    for line in lines:
        arch, registers, stack, spilled, name = line.split(maxsplit=4)
        if int(stack) or int(spilled):
            found.append(f"{name.strip()} for {arch}: {spilled} bytes spilled, {stack} bytes of stack, {registers} registers")
    return found


def main():
    if len(sys.argv) == 1:
        print("skipped: built without nvcc")
        sys.exit(77)
    if not complaints_of(["sm_90 64 16 0 planted"]) or not complaints_of(["sm_90 64 0 8 planted"]):
        sys.exit("a planted spill was not found")
    lines = [line for log in sys.argv[1:] for line in open(log, encoding="utf-8")]
    found = complaints_of(lines)
    print("".join(lines))
    print("\n".join(found))
    print(f"{len(lines)} kernels, {len(found)} spill")
    sys.exit(1 if found or not lines else 0)


if __name__ == "__main__":
    main()
