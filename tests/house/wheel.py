"""Options for meson setup that a wheel is made with: all of them reach Meson, and none stays for the next wheel. Meson, which
keeps its options, is made up."""
import os
import sys
import tempfile
from pathlib import Path

import tree

sys.path.insert(0, str(tree.ROOT / "tools/wheel"))
import backend  # noqa: E402

# What it was given is in the build folder as long as that exists.
MESON = """#!/bin/sh
[ $1 = setup ] || exit 0
shift
for argument; do [ -n "$folder" ] || case $argument in /*) folder=$argument ;; esac; done
mkdir -p "$folder"
touch "$folder/build.ninja"
echo "$@" >>"$folder/given"
"""
WHEELS = [  # settings, whether the build folder is the one before
    ({}, False),
    ({}, True),
    ({"package": "tutti_array"}, True),
    ({"setup-args": "-Dcuda=disabled"}, False),
    ({"setup-args": "-Dcuda=disabled"}, True),
    ({}, False),
    ({"setup-args": ["-Dcuda=disabled", "-Dverbs=disabled -Dgpu_arch=90"]}, False),  # from several of pip's -C
    ({"setup-args": "-Dcuda=disabled -Dverbs=disabled -Dgpu_arch=90"}, True),
]


def main():
    wrong = []
    with tempfile.TemporaryDirectory() as scratch:
        backend.ROOT = Path(scratch)
        meson = Path(scratch, "meson")
        meson.write_text(MESON, encoding="utf-8")
        meson.chmod(0o755)
        os.environ["PATH"] = f"{scratch}:{os.environ['PATH']}"
        times = 0
        for nth, (settings, stays) in enumerate(WHEELS):
            folder = backend.built(settings)
            given = Path(folder, "given").read_text(encoding="utf-8").splitlines()
            times = times + 1 if stays else 1
            if len(given) != times or ("--reconfigure" in given[-1]) != stays:
                wrong.append(f"wheel {nth}, {settings}: the build folder was told {given}")
            if str(settings.get("setup-args", "")).count("-D") != given[-1].count("-D") - 3:  # the backend's own
                wrong.append(f"wheel {nth}, {settings}: Meson was told {given[-1]}")
    tree.finish(wrong, len(WHEELS))


if __name__ == "__main__":
    main()
