"""Installs the peers and builds the programs of tools/compare."""
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = {
    "openmpi": ["openmpi-bin", "libopenmpi-dev"],
    "mpich": ["mpich", "libmpich-dev"],
    "gloo": ["libgloo-dev"],
}
FLAGS = ["-std=c++20", "-O3", "-march=native"]
DRIVER = ["bench.cpp", "meet.cpp"]


class Failed(Exception):
    pass


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, **options)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(packages, log):
    """Through the shell functions that tools/quickstart and tools/check use. Says what it does; whether it succeeded
    shows when the packages are used."""
    log.parent.mkdir(parents=True, exist_ok=True)
    script = 'log=$1; shift; . tools/lib/setup.sh; require_packages "$@"'
    subprocess.run(["bash", "-c", script, "compare", str(log), *packages], stdout=sys.stderr, cwd=ROOT, check=False)


def build_tutti(folder):
    """libtutti.so, made or brought up to date."""
    if not (folder / "build.ninja").exists():
        script = 'log=$1; . tools/lib/setup.sh; require_packages "${build_packages[@]}"'
        subprocess.run(["bash", "-c", script, "compare", str(folder / "compare.log")], stdout=sys.stderr, cwd=ROOT,
                       check=False)
        run(["meson", "setup", str(folder), "--buildtype=release"])
    run(["meson", "compile", "-C", str(folder), "tutti"])


def recipe(library, folder):
    """(compiler, sources, flags) of a program; `folder` has libtutti.so."""
    compiler = os.environ.get("CXX", "c++").split()
    if library == "tutti":
        link = [f"-I{ROOT / 'include'}", f"-L{folder}", "-ltutti", f"-Wl,-rpath,{folder}"]
        return compiler, ["tutti.cpp"], link
    if library == "floor":
        return compiler, ["floor.cpp", "floor_memory.cpp", "floor_sockets.cpp"], []
    if library == "gloo":
        return compiler, ["gloo.cpp"], ["-lgloo", "-pthread"]
    # Their headers bring C++ bindings of old, which warn.
    return [f"mpicxx.{library}"], ["mpi.cpp"], ["-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]


def is_current(binary):
    sources = [*HERE.glob("*.cpp"), *HERE.glob("*.h"), ROOT / "include/tutti/tutti.h", ROOT / "include/tutti/types.h"]
    return binary.exists() and binary.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def build(library, folder):
    """Compiles a library's program unless it is current. Raises Failed."""
    binary = folder / "compare" / library
    compiler, sources, flags = recipe(library, folder)
    if is_current(binary):
        return
    if not shutil.which(compiler[0]):
        raise Failed(f"there is no {compiler[0]}")
    binary.parent.mkdir(exist_ok=True)
    run([*compiler, *FLAGS, *(str(HERE / source) for source in sources + DRIVER), *flags, "-o", str(binary)])


def versions():
    """What is compared, as the system's packages name it."""
    found = {}
    for library, packages in PACKAGES.items():
        query = ["dpkg-query", "-W", "-f", "${Version}", packages[-1]]
        if shutil.which("dpkg-query"):
            found[library] = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return found
