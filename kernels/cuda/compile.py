"""Runs nvcc and keeps and prints what its assembler says of each kernel: compile.py LOG COMMAND...

LOG gets a line for each kernel and architecture: architecture, registers, bytes of the stack, bytes spilled, name.
With NVCC_CACHE_DIR=FOLDER, what was compiled before from the same files with the same flags is taken from there: ccache
knows no command for several architectures.
"""
import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

KERNEL = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def lines_of(text):
    """The output of ptxas -v: a tuple for each kernel and architecture."""
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


def output_of(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stdout + result.stderr)
    return result.stdout + result.stderr


def option_of(command, name):
    return pathlib.Path(command[command.index(name) + 1])


def key_of(command, dependencies):
    """Hashes the compiler's version, its flags except folders, and each file that it reads."""
    key = hashlib.sha256(output_of([command[0], "--version"]).encode())
    key.update("\0".join(word for word in command if "/" not in word).encode())
    for path in re.split(r"\s+", dependencies.split(":", 1)[1].replace("\\\n", " ").strip()):
        key.update(b"\0" + pathlib.Path(path).read_bytes())
    return key.hexdigest()


def compile(command):
    """Returns nvcc's messages."""
    folder = os.environ.get("NVCC_CACHE_DIR")
    if not folder:
        return output_of(command)
    target, dependency_file = option_of(command, "-o"), option_of(command, "-MF")
    flags = [word for word in command if word not in ("-MD", "-MF", str(dependency_file), "-c", "-o", str(target))]
    dependencies = output_of(flags + ["-M", "-MT", str(target)])
    kept = pathlib.Path(folder) / key_of(command, dependencies)
    if not kept.is_dir():
        output = output_of(command)
        with contextlib.suppress(OSError):  # a full disk, or another build was faster
            new = kept.with_suffix(f".{os.getpid()}")
            new.mkdir(parents=True)
            shutil.copy(target, new / "object")
            (new / "output").write_text(output, encoding="utf-8")
            new.rename(kept)
        return output
    shutil.copy(kept / "object", target)
    dependency_file.write_text(dependencies, encoding="utf-8")
    return (kept / "output").read_text(encoding="utf-8")


def main():
    log, command = sys.argv[1], sys.argv[2:]
    output = compile(command)
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
