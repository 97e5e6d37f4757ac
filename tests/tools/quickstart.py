"""What tools/quickstart builds is enough for what it then runs: its measurements work in a folder that has nothing else.

quickstart.py BUILD_FOLDER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = r"libtutti\.so.*|tools/.*(?<!\.o)"  # of the files that are built on the way, those that a program may open


def ninja(folder, *arguments):
    done = subprocess.run(["ninja", "-C", folder, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def built_by(folder, names):
    """Paths, within the build folder, of the targets of these names and of all that they are made of."""
    every = [line.split(":")[0] for line in ninja(folder, "-t", "targets", "all")]
    targets = [path for path in every if path.startswith("tools/") and path.rpartition("/")[2] in names]
    assert len(targets) == len(names), (targets, names)
    paths = set(targets + ninja(folder, "-t", "inputs", *targets))
    aliases = {path.name for path in folder.glob("libtutti.so*") if path.is_symlink()}  # made by meson setup
    return sorted(path for path in paths | aliases if re.fullmatch(KINDS, path))


def configured(ninja_file):
    """How a build folder with this build.ninja, or none, is configured; Meson only notes what it is told."""
    with tempfile.TemporaryDirectory() as name:
        tree, said = pathlib.Path(name, "tree"), pathlib.Path(name, "said")
        shutil.copytree(ROOT / "tools", tree / "tools")
        (tree / "build").mkdir()
        if ninja_file is not None:
            (tree / "build/build.ninja").write_text(ninja_file, encoding="utf-8")
        meson = tree / "meson"
        meson.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo 1.0.1 || echo $* >>{said}\n[ $1 != compile ]\n", encoding="utf-8")
        meson.chmod(0o755)
        subprocess.run([tree / "tools/quickstart"], env={**os.environ, "PATH": f"{tree}:{os.environ['PATH']}"}, check=False)
        return said.read_text(encoding="utf-8").splitlines()[:-1]


def check_configuring():
    for ninja_file, wanted in ((None, ["setup build --buildtype=release -Dtools=enabled"]),
                               ("build libtutti.so.0: ...", ["setup --reconfigure build -Dtools=enabled"]),
                               ("build tools/perf/all_reduce_perf: ...", [])):
        told = configured(ninja_file)
        if told != wanted:
            sys.exit(f"with {ninja_file!r} in build.ninja Meson is told {told}, not {wanted}")


def main():
    check_configuring()
    folder = pathlib.Path(sys.argv[1]).resolve()
    script = (ROOT / "tools/quickstart").read_text(encoding="utf-8")
    names = re.search(r"meson compile -C build (.*)", script)[1].split()
    measurements = re.findall(r'"([^"]*)"', re.search(r"for arguments in (.*);", script)[1])
    program = re.search(r"perf=build/(\S+)", script)[1]
    assert measurements
    with tempfile.TemporaryDirectory() as name:
        alone = pathlib.Path(name)
        for path in built_by(folder, names):
            (alone / path).parent.mkdir(parents=True, exist_ok=True)
            if (folder / path).exists():
                shutil.copy2(folder / path, alone / path, follow_symlinks=(folder / path).is_file())
        for arguments in measurements:
            few = ["-w", "0", "-n", "1", *(["-e", "64K"] if "-b" in arguments.split() else [])]
            done = subprocess.run([alone / program, *arguments.split(), *few], capture_output=True, text=True, check=False)
            print(f"{program} {arguments}: exit status {done.returncode}", done.stderr, sep="\n")
            if done.returncode != 0:
                sys.exit(1)


if __name__ == "__main__":
    main()
