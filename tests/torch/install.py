"""install.py FOLDER LIBTUTTI: installs the PyTorch backend into FOLDER, by pip and without a network: the wheel that
tools/make-wheel has made of this LIBTUTTI and this tree, else lib/torch alone. Says which."""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import prerequisites

ROOT = Path(__file__).resolve().parents[2]


def wheel(library):
    """None if there is none, or if the files that it was made of are newer."""
    parts = [library, *(ROOT / "lib/torch").rglob("*.py")]
    made = list((ROOT / "build/wheels").glob("tutti_torch-*.whl"))
    return made[0] if made and made[0].stat().st_mtime > max(part.stat().st_mtime for part in parts) else None


def pip(folder, what, *more):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    return subprocess.run([*command, "--no-deps", "--no-index", "--target", folder, *more, what], check=False).returncode


def main():
    folder, library = sys.argv[1], Path(sys.argv[2])
    prerequisites.require("pip")
    if made := wheel(library):
        print(f"installing {made.name}")
        sys.exit(pip(folder, made))
    prerequisites.require("flit_core")
    with tempfile.TemporaryDirectory() as scratch:
        # From a copy, because building may leave files beside the sources.
        source = Path(scratch, "source")
        shutil.copytree(ROOT / "lib/torch", source, ignore=shutil.ignore_patterns("__pycache__"))
        print("installing lib/torch (there is no wheel of this build: tools/make-wheel -C build-dir=build makes it)")
        sys.exit(pip(folder, source, "--no-build-isolation"))


if __name__ == "__main__":
    main()
