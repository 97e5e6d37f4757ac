"""after_install.py PYTHON PACKAGES SOURCE: what `meson install` says at its end: who finds the PyTorch backend there."""
import os
import sys

python, packages, source = sys.argv[1:]
if "MESON_INSTALL_QUIET" not in os.environ:
    where = os.environ.get("DESTDIR", "") + packages
    said = f"The PyTorch backend is in {where}, where only {python} may find it. The usual way, also for another Python or a " \
           f"virtual environment: pip install {source}"
    try:  # Meson does not show what a script prints.
        with open(f"/proc/{os.getppid()}/fd/1", "a", encoding="utf-8") as stdout:
            print(said, file=stdout)
    except OSError:
        print(said)
