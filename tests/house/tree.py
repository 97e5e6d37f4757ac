"""Shared by the house tests: the files of the source tree, and a way to end."""
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = {".h", ".c", ".cpp", ".cu", ".cuh", ".py", ".sh"}


def is_ignored(folder):
    return folder == ".git" or folder.startswith("build") or folder in ("__pycache__", ".cache", ".venv")


def files():
    """Every file of the tree, as a path relative to its root; build folders and git's own are left out."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if not is_ignored(f))
        for name in sorted(names):
            path = Path(folder, name)
            if name != ".git" and path.is_file() and not path.is_symlink():
                yield path.relative_to(ROOT)


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def is_script(path):
    return path.suffix == "" and (ROOT / path).open("rb").read(2) == b"#!"


def code_files():
    return [f for f in files() if f.suffix in CODE or f.name == "meson.build" or is_script(f)]


def finish(complaints, checked):
    """Prints the complaints and ends the test; checking nothing at all is a failure, too."""
    for complaint in complaints:
        print(complaint)
    print(f"{checked} checked, {len(complaints)} wrong")
    sys.exit(1 if complaints or not checked else 0)
