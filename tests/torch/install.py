"""install.py FOLDER LIBTUTTI: installs the PyTorch backend into FOLDER, without a network: the wheel that
tools/make-wheel has made of this LIBTUTTI and this tree, else lib/torch alone, by pip. Says which."""
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import prerequisites

ROOT = Path(__file__).resolve().parents[2]


def wheel(library):
    """None if there is none, or if the files that it was made of are newer."""
    parts = [library, *(ROOT / "lib/torch").rglob("*.py")]
    made = list((ROOT / "build/wheels").glob("tutti_torch-*.whl"))
    return made[0] if made and made[0].stat().st_mtime > max(part.stat().st_mtime for part in parts) else None


def pip(folder, what):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--target", folder]
    return subprocess.run([*command, *options, what], check=False).returncode


def main():
    folder, library = sys.argv[1], Path(sys.argv[2])
    if made := wheel(library):
        print(f"unpacking {made.name}")  # as pip would, in a quarter of the time; test_wheel.py uses pip
        zipfile.ZipFile(made).extractall(folder)
        return
    prerequisites.require("pip")
    prerequisites.require("flit_core")
    with tempfile.TemporaryDirectory() as scratch:
        # From a copy, because building may leave files beside the sources.
        source = Path(scratch, "source")
        shutil.copytree(ROOT / "lib/torch", source, ignore=shutil.ignore_patterns("__pycache__"))
        print("installing lib/torch (there is no wheel of this build: tools/make-wheel -C build-dir=build makes it)")
        sys.exit(pip(folder, source))


if __name__ == "__main__":
    main()
