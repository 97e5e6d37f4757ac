"""Runs nvcc and keeps and prints what its assembler says of each kernel: compile.py LOG COMMAND...

LOG gets a line for each kernel and architecture: architecture, registers, bytes of the stack, bytes spilled, name.
"""
import re
import shutil
import subprocess
import sys

KERNEL = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def lines_of(text):
    """What ptxas -v says, a tuple for each kernel and architecture."""
    found, kernel, stack = [], None, None
    for line in text.splitlines():
        if match := KERNEL.search(line):
            kernel, stack = match.groups(), None
        elif kernel and (match := STACK.search(line)):
            stack = [int(number) for number in match.groups()]
        elif kernel and stack and (match := REGISTERS.search(line)):
            found.append((kernel[1], int(match[1]), stack[0], stack[1] + stack[2], kernel[0]))
            kernel = None
    return found


def plain_names(names):
    tool = shutil.which("c++filt")
    if not tool or not names:
        return names
    return subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()


def main():
    log, command = sys.argv[1], sys.argv[2:]
    result = subprocess.run(command, capture_output=True, text=True)
    output = result.stdout + result.stderr
    if result.returncode:
        sys.exit(output)
    found = lines_of(output)
    names = plain_names([line[4] for line in found])
    table = "".join(f"{arch} {registers} {stack} {spilled} {name}\n"
                    for (arch, registers, stack, spilled, _), name in zip(found, names))
    with open(log, "w", encoding="utf-8") as file:
        file.write(table)
    print("architecture, registers, stack bytes, spilled bytes, kernel")
    print(table, end="")
    warnings = [line for line in output.splitlines() if "warning" in line]
    print("\n".join(warnings))


if __name__ == "__main__":
    main()
