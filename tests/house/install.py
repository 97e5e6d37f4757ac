"""Installs into an empty folder, then builds and runs the README's C programs against it as a stranger would: pkg-config
and a C99 compiler. What they print has to be what the README says they print.

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


def examples():
    """The C programs of the README, each with the block that shows its output."""
    programs = [block for block in blocks("c") if "int main(" in block]
    outputs = [block for block in blocks("text") if block.startswith("$ ./example\n")]
    assert programs and len(programs) == len(outputs), "README.md has to have C programs with an output for each"
    return zip(programs, [output.split("\n", 1)[1] for output in outputs])


def main():
    meson, build, compiler = sys.argv[1], sys.argv[2], sys.argv[3:]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        run([meson, "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", str(root)])
        pc_files = list(root.rglob("tutti.pc"))
        assert len(pc_files) == 1, f"tutti.pc was installed {len(pc_files)} times"
        env = dict(os.environ, PKG_CONFIG_PATH=str(pc_files[0].parent), PKG_CONFIG_SYSROOT_DIR=str(root))
        flags = run(["pkg-config", "--cflags", "--libs", "tutti"], env=env, stdout=subprocess.PIPE).stdout.split()
        found_at = dict(os.environ, LD_LIBRARY_PATH=str(next(root.rglob("libtutti.so.0")).parent))
        found, checked = [], 0
        for program, expected in examples():
            Path(scratch, "example.c").write_text(program, encoding="utf-8")
            warnings = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
            run([*compiler, *warnings, "-pthread", "example.c", *flags, "-o", "example"], cwd=scratch)
            output = run(["./example"], cwd=scratch, env=found_at, stdout=subprocess.PIPE).stdout
            print(output)
            found += [] if output == expected else [f"README.md says that it prints:\n{expected}"]
            checked += 1
    tree.finish(found, checked)


if __name__ == "__main__":
    main()
