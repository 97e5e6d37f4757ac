"""configuring.py MESON CXX...: a build folder configured on a bare machine, and again once packages are there. Only configured:
what is to be built tells. Python's headers and nvcc are made up, and the compiler does not find nlohmann-json at first."""
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import tree

# Fails for a program that includes what is hidden, until it is not.
COMPILER = """#!/bin/sh
for argument; do
  case $argument in
    nlohmann/json.hpp) [ ! -e {hidden} ] || exit 1 ;;
    *.cpp) [ ! -e {hidden} ] || ! grep -q nlohmann/json.hpp "$argument" || exit 1 ;;
  esac
done
exec {compiler} "$@"
"""
# As of CUDA 12.0 with g++ 13.
NVCC = """#!/bin/sh
case "$*" in *--dryrun*) exit 0 ;; esac
echo 'host_config.h:132:2: error: #error -- unsupported GNU version!' >&2
exit 1
"""
PYTHON = """#!/bin/sh
case "$*" in *'get_path("include")'*) echo {headers} ;; *) exec {python} "$@" ;; esac
"""
FREE_THREADED = """#ifdef Py_LIMITED_API
#error "The limited API is not currently supported in the free-threaded build"
#endif
"""


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


class Machine:
    def __init__(self, scratch, meson, compiler):
        self.meson, self.build, self.headers, self.hidden = meson, scratch / "build", scratch / "headers", scratch / "hidden"
        self.hidden.touch()
        write(scratch / "bin/cxx", COMPILER.format(hidden=self.hidden, compiler=shlex.join(compiler)))
        write(scratch / "bin/nvcc", NVCC)
        write(scratch / "bin/python3", PYTHON.format(headers=self.headers, python=sys.executable))
        self.env = dict(os.environ, CXX=str(scratch / "bin/cxx"), PATH=f"{scratch / 'bin'}:{os.environ['PATH']}")

    def configure(self, *options):
        command = [self.meson, "setup", self.build, tree.ROOT, "-Dtests=disabled", "-Dtools=disabled", *options]
        return subprocess.run(command, env=self.env, text=True, capture_output=True, timeout=300, check=False)

    def sources(self):
        """The names of the files that are to be compiled."""
        told = subprocess.run([self.meson, "introspect", "--targets", self.build], check=True, text=True, capture_output=True)
        groups = [group for target in json.loads(told.stdout) for group in target["target_sources"]]
        return {Path(path).name for group in groups for path in group.get("sources", [])}


def main():
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        machine = Machine(Path(name), sys.argv[1], sys.argv[2:])

        def expect(when, there, absent, *options):
            done = machine.configure(*options)
            if done.returncode:
                wrong.append(f"{when}: {done.stdout}{done.stderr}")
                return ""
            sources = machine.sources()
            wrong.extend(f"{when}: {name} is not compiled" for name in there if name not in sources)
            wrong.extend(f"{when}: {name} is compiled" for name in absent if name in sources)
            return done.stdout

        said = expect("on a bare machine", ["no_cluster.cpp"], ["cluster.cpp", "calls.cpp"])
        if "error: #error -- unsupported GNU version!" not in said or "building without CUDA" not in said:
            wrong.append(f"nothing is said of an nvcc that refuses the compiler: {said}")
        machine.hidden.unlink()
        write(machine.headers / "Python.h", "")
        expect("with all packages", ["cluster.cpp", "calls.cpp"], ["no_cluster.cpp"], "--reconfigure")
        write(machine.headers / "Python.h", FREE_THREADED)
        expect("with headers that have no stable API", ["cluster.cpp"], ["calls.cpp"], "--reconfigure")
        done = machine.configure("--reconfigure", "-Dcuda=enabled")
        if done.returncode == 0 or "unsupported GNU version!" not in done.stdout:
            wrong.append(f"-Dcuda=enabled with an nvcc that refuses the compiler: {done.stdout}")
    tree.finish(wrong, 4)


if __name__ == "__main__":
    main()
