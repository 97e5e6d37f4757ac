"""install.py FOLDER: installs the PyTorch backend of this tree into FOLDER, by pip and without a network."""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import prerequisites

prerequisites.require("pip", "flit_core")
with tempfile.TemporaryDirectory() as scratch:
    # From a copy: building may leave files beside the sources.
    source = Path(scratch, "source")
    shutil.copytree(Path(__file__).resolve().parents[2] / "lib/torch", source, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    offline = ["--no-build-isolation", "--no-deps", "--no-index"]
    sys.exit(subprocess.run([*pip, *offline, "--target", sys.argv[1], source], check=False).returncode)
