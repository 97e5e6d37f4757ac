"""Runs a test's functions as ranks of one group: each in all processes, one after the other. Called by main(NEEDED MODULES)."""
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def launch(n_ranks, script, library):
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    common = dict(os.environ, TUTTI_LIBRARY=library, TUTTI_NRANKS=str(n_ranks), TUTTI_ROOT=f"localhost:{port}", TUTTI_SECRET="arrays",
                  PYTHONPATH=str(ROOT / "lib/numpy"), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1", JAX_PLATFORMS="cpu")
    ranks = [subprocess.Popen([sys.executable, script, library], env=dict(common, TUTTI_RANK=str(rank))) for rank in range(n_ranks)]
    codes = [rank.wait() for rank in ranks]
    sys.exit(f"the ranks ended with {codes}" if any(codes) else 0)


def main(names, *modules, n_ranks):
    """names: of the caller's module. Those that begin with test_ are called with the communicator."""
    made = ROOT / "build/torch-venv/bin/python"  # by tools/check --torch
    python = os.environ.pop("TUTTI_PYTHON", str(made) if made.exists() else None)
    if python and python != sys.executable:
        os.execv(python, [python, *sys.argv])
    for module in modules:
        if importlib.util.find_spec(module) is None:
            skip(f"{sys.executable} has no {module} (set TUTTI_PYTHON to an interpreter that has it)")
    if "TUTTI_RANK" not in os.environ:
        launch(n_ranks, sys.argv[0], sys.argv[1])
    import tutti_array

    with tutti_array.init() as comm:
        tests = [name for name in sorted(names) if name.startswith("test_")]
        for name in tests:
            names[name](comm)
            if comm.rank == 0:
                print("ok:", name, flush=True)
    assert tests, "there are no tests"
