"""Installs into an empty folder, then builds and runs the README's C example against it as a stranger would: pkg-config
and a C99 compiler. What it prints has to be what the README says it prints.

install.py MESON BUILD_DIR CC...
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import tree


def run(command, **options):
    print("$", shlex.join(map(str, command)), flush=True)
    return subprocess.run(command, check=True, text=True, timeout=120, **options)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", tree.read("README.md"), re.M | re.S)


def example():
    """The one C program of the README and the block that shows its output."""
    programs = [block for block in blocks("c") if "int main(" in block]
    outputs = [block for block in blocks("text") if block.startswith("$ ./example\n")]
    assert len(programs) == 1 and len(outputs) == 1, "README.md has to have one C program and one output of it"
    return programs[0], outputs[0].split("\n", 1)[1]


def main():
    meson, build, compiler = sys.argv[1], sys.argv[2], sys.argv[3:]
    program, expected = example()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        run([meson, "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", str(root)])
        pc_files = list(root.rglob("tutti.pc"))
        assert len(pc_files) == 1, f"tutti.pc was installed {len(pc_files)} times"
        env = dict(os.environ, PKG_CONFIG_PATH=str(pc_files[0].parent), PKG_CONFIG_SYSROOT_DIR=str(root))
        flags = run(["pkg-config", "--cflags", "--libs", "tutti"], env=env, stdout=subprocess.PIPE).stdout.split()
        Path(scratch, "example.c").write_text(program, encoding="utf-8")
        run([*compiler, "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-pthread", "example.c", *flags, "-o", "example"],
            cwd=scratch)
        env = dict(os.environ, LD_LIBRARY_PATH=str(next(root.rglob("libtutti.so.0")).parent))
        output = run(["./example"], cwd=scratch, env=env, stdout=subprocess.PIPE).stdout
    print(output)
    tree.finish([] if output == expected else [f"README.md says that it prints:\n{expected}"], 1)


if __name__ == "__main__":
    main()
