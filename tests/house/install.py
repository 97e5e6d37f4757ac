"""Installs into an empty folder, then builds and runs the documents' C programs against it with the commands shown there:
pkg-config and a C99 compiler. What they print has to be what the documents say they print.

Of the programs: all are called tutti-..., and have a manual page that tells of each option.

install.py MESON BUILD_DIR CC...           all this
install.py --cmake MESON BUILD_DIR CC...   only: CMake's find_package(Tutti) finds it, also after a move
"""
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import markdown
import tree


def run(command, **options):
    print("$", shlex.join(map(str, command)), flush=True)
    return subprocess.run(command, check=True, text=True, timeout=120, **options)


def examples():
    """The C programs of all documents, each with the command that compiles it, and with the one that runs it and what it
    prints."""
    for program, following in markdown.programs():
        compiles = [line for block in following if block.language == "sh" for line in block.text.splitlines() if line.startswith("cc ")]
        runs = [block.text for block in following if block.language == "text" and block.text.startswith("$ ")]
        assert compiles and runs, f"{program.path}:{program.line}: a program needs a command that compiles it, and its output"
        command, output = runs[0].removeprefix("$ ").split("\n", 1)
        yield program, compiles[0], command, output


def parts():
    """The pieces of C that are no programs: they must compile as they are."""
    return [block for block in markdown.blocks("c") if "int main(" not in block.text]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def check_programs(root):
    """Problems with names and manual pages."""
    programs = [path for path in root.rglob("bin/*") if path.is_file()]
    found = [f"{path.name} is installed without tutti- before it" for path in programs if not path.name.startswith("tutti-")]
    pages = {path.stem: path for path in root.rglob("man1/*.1")}
    env = dict(os.environ, LD_LIBRARY_PATH=str(next(root.rglob("libtutti.so.0")).parent))
    for program in programs:
        if program.name == "tutti-transport-test":  # it has Catch2's options
            continue
        usage = run([program, "--help"], env=env, stdout=subprocess.PIPE).stdout
        text = pages[program.name].read_text(encoding="utf-8").replace("\\-", "-") if program.name in pages else ""
        options = re.findall(r"(?<![\w-])--[a-z][\w-]+", usage)
        found += [f"{program.name}.1 does not tell of {option}" for option in options if option not in text]
        if not options:
            found.append(f"{program.name} --help tells of no option")
    if pages and shutil.which("man"):
        read = ["man", "--warnings", "-E", "UTF-8", "-l", *map(str, pages.values())]
        done = run(read, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ, MANWIDTH="100", MANPAGER="cat"))
        found += done.stderr.splitlines()
    return found, len(programs)


CMAKE_PROJECT = """cmake_minimum_required(VERSION 3.10)
project(stranger C)
find_package(Tutti 0.1 REQUIRED)
find_package(Tutti 99 QUIET)
if(Tutti_FOUND)
  message(FATAL_ERROR "version 99 is found")
endif()
find_package(Tutti REQUIRED)
add_executable(example example.c)
target_link_libraries(example Tutti::tutti pthread)
"""


def check_cmake(root, scratch, compiler):
    """Builds and runs a CMake project against an installation that was moved, found by a link to its lib/."""
    moved, links = Path(scratch, "moved"), Path(scratch, "links")
    next(root.rglob("include/tutti")).parents[1].rename(moved)
    links.mkdir()
    for lib in moved.glob("lib*"):
        (links / lib.name).symlink_to(lib)
    project = Path(scratch, "project")
    project.mkdir()
    (project / "CMakeLists.txt").write_text(CMAKE_PROJECT, encoding="utf-8")
    program, _, _, expected = [example for example in examples() if "pthread_create" in example[0].text][0]
    (project / "example.c").write_text(program.text, encoding="utf-8")
    env = dict(os.environ, CC=shlex.join(compiler))
    run(["cmake", "-G", "Ninja", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={links}"], env=env)
    run(["cmake", "--build", project / "build"])
    output = run([project / "build/example"], stdout=subprocess.PIPE).stdout
    tree.finish([] if output == expected else [f"it prints {output}"], 1)


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--cmake"]
    meson, build, compiler = arguments[0], arguments[1], arguments[2:]
    if "--cmake" in sys.argv and shutil.which("cmake") is None:
        print("skipped: cmake is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        said = run([meson, "install", "-C", build, "--no-rebuild", "--destdir", str(root)], stdout=subprocess.PIPE).stdout
        if "--cmake" in sys.argv:
            check_cmake(root, scratch, compiler)
        pc_files = list(root.rglob("tutti.pc"))
        assert len(pc_files) == 1, f"tutti.pc was installed {len(pc_files)} times"
        env = dict(os.environ, PKG_CONFIG_PATH=str(pc_files[0].parent), PKG_CONFIG_SYSROOT_DIR=str(root))
        flags = run(["pkg-config", "--cflags", "--libs", "tutti"], env=env, stdout=subprocess.PIPE).stdout.split()
        found_at = dict(os.environ, LD_LIBRARY_PATH=str(next(root.rglob("libtutti.so.0")).parent))
        found, checked = check_programs(root)
        for package in root.rglob("tutti_torch"):
            if f"The PyTorch backend is in {package.parent}" not in said or "pip install" not in said:
                found.append(f"meson install does not say that tutti_torch is in {package.parent}:\n{said}")
        warnings = ["-pedantic", "-Wall", "-Wextra", "-Werror"]
        strict = shlex.join([*compiler, *warnings])
        for program, compiles, command, expected in examples():
            Path(scratch, "example.c").write_text(program.text, encoding="utf-8")
            run(["bash", "-c", compiles.replace("cc", strict, 1)], cwd=scratch, env=env)
            command = command.replace(":4711", ":" + free_port())
            output = run(["bash", "-c", command], cwd=scratch, env=found_at, stdout=subprocess.PIPE).stdout
            print(output)
            found += [] if output == expected else [f"{program.path}:{program.line} says that it prints:\n{expected}"]
            checked += 1
        for part in parts():
            Path(scratch, "part.c").write_text(part.text, encoding="utf-8")
            run([*compiler, "-std=c99", *warnings, *flags, "-c", "part.c"], cwd=scratch)
            checked += 1
    tree.finish(found, checked)


if __name__ == "__main__":
    main()
