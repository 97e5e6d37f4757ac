"""after_install.py PYTHON PACKAGES SOURCE: what `meson install` says at its end: who finds the PyTorch backend there."""
import os
import sys

python, packages, source = sys.argv[1:]
if "MESON_INSTALL_QUIET" not in os.environ:
    where = os.environ.get("DESTDIR", "") + packages
    print(f"The PyTorch backend is in {where}, where only {python} may find it. For another Python or a virtual environment, "
          f"and as the usual way: pip install {source}/lib/torch")
