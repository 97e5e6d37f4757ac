"""debian.py BUILD_DIR MESON: every file that is installed is in exactly one Debian package (tools/debian), and the packages have
the project's version. tools/make-deb builds and tries them."""
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tree

DEBIAN = tree.ROOT / "tools/debian"


def patterns():
    """package -> the patterns it takes, relative to the root directory."""
    return {file.stem: file.read_text(encoding="utf-8").split() for file in DEBIAN.glob("*.install")}


def takes(pattern, path):
    """As dh_install does: a folder is taken with its content; * matches within one name."""
    parts = Path(path).parts
    wanted = Path(pattern).parts
    return len(parts) >= len(wanted) and all(map(fnmatch.fnmatch, parts, wanted))


def as_packaged(path, prefix):
    """The path in Debian: with /usr as prefix, an architecture folder below lib/, and one folder for all Pythons."""
    path = re.sub(r".*/python3[\d.]*/(site|dist)-packages/", "usr/lib/python3/dist-packages/", path)
    return re.sub(rf"^{prefix}/", "usr/", path)


def left_behind():
    """What trying no packages at all leaves, which fails once the copy of the system is there."""
    with tempfile.TemporaryDirectory() as name:
        packages, scratch = Path(name, "packages"), Path(name, "scratch")
        packages.mkdir()
        scratch.mkdir()
        subprocess.run([tree.ROOT / "tools/lib/try_deb.sh", packages], env={**os.environ, "TMPDIR": str(scratch)}, check=False,
                       stderr=subprocess.DEVNULL)
        return [f"tools/lib/try_deb.sh leaves {path.name} in TMPDIR" for path in scratch.iterdir()]


def main():
    build, meson = sys.argv[1:]

    def introspect(what):
        return json.loads(subprocess.run([meson, "introspect", what, build], check=True, stdout=subprocess.PIPE).stdout)

    options = {option["name"]: option["value"] for option in introspect("--buildoptions")}
    if "linux-gnu" not in options["libdir"]:
        print("skipped: the build is not configured as Debian is (libdir has no folder for the kind of machine)")
        sys.exit(77)
    wrong = []
    installed = sorted(as_packaged(path, options["prefix"]) for path in introspect("--installed").values())
    for path in installed:
        owners = [package for package, wanted in patterns().items() if any(takes(pattern, path) for pattern in wanted)]
        if len(owners) != 1:
            wrong.append(f"{path} is in {' and '.join(owners) or 'no package'} of tools/debian")
    version = introspect("--projectinfo")["version"]
    first = (DEBIAN / "changelog").read_text(encoding="utf-8").split("\n")[0]
    if f"({version})" not in first:
        wrong.append(f"tools/debian/changelog begins with {first!r}, but the version is {version}")
    control = set(re.findall(r"^Package: (.*)", (DEBIAN / "control").read_text(encoding="utf-8"), re.M))
    wrong += [f"tools/debian/control has no package {package}" for package in patterns() if package not in control]
    wrong += left_behind()
    print(f"{len(installed)} files in {len(control)} packages")
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
