"""Makes one wheel of the whole project, for pip (PEP 517): the PyTorch backend `tutti_torch`, and in its folder libtutti with
the verbs plugin, libnccl, headers, CMake and pkg-config files, and the programs, arranged as `meson install` does.

    pip install .                                builds in build/wheel
    pip wheel . -C setup-args=-Dcuda=disabled    options for meson setup
    pip wheel . -C build-dir=build               takes what is built in build already
    pip wheel . -C package=tutti_array           the one for arrays without torch: that package, libtutti and its verbs plugin
"""
from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The folder of each package's description.
PACKAGES = {"tutti_torch": "lib/torch", "tutti_array": "lib/numpy"}
NEEDS = "This compiles Tutti; tools/quickstart installs what that needs on Debian and Ubuntu (a C++20 compiler, hwloc, libsodium, CLI11, nlohmann-json)"
# Replaces a program where pip puts programs: it need not know that folder, and does not load torch. The program is told
# the name that it is called by.
LAUNCHER = """#!python
import importlib.util, os, sys
os.execv(os.path.join(os.path.dirname(importlib.util.find_spec("tutti_torch").origin), "bin", "{}"), sys.argv)
"""


def run(*command: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def built(settings: dict) -> Path:
    """The build directory, with everything built."""
    if "build-dir" in settings:
        return Path(settings["build-dir"]).resolve()
    folder = ROOT / "build/wheel"
    given = settings.get("setup-args", "")
    given = shlex.split(given if isinstance(given, str) else " ".join(given))  # a list if there are several
    kept = folder / "setup-args"  # Meson would keep options that are not given any more
    if not kept.exists() or kept.read_text(encoding="utf-8") != shlex.join(given):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        kept.write_text(shlex.join(given), encoding="utf-8")
    again = ["--reconfigure"] if (folder / "build.ninja").exists() else []
    tools = "disabled" if package_of(settings) == "tutti_array" else "enabled"
    options = ["--libdir=lib", "-Dtests=disabled", "-Dtorch=enabled", f"-Dtools={tools}", *given]
    try:
        for command in (["meson", "setup", *again, folder, ROOT, *options], ["meson", "compile", "-C", folder]):
            subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{error}. {NEEDS}")
    return folder


def without_symlinks(lib: Path) -> None:
    """Wheels cannot contain links: a library gets the name that programs load it by, and a linker script the linker's name."""
    links = {path: run("patchelf", "--print-soname", path).strip() for path in lib.rglob("*.so*") if path.is_symlink()}
    for path, soname in links.items():
        target = path.resolve()
        if target.name != soname:
            (path.parent / soname).unlink()
            target.rename(path.parent / soname)
    for path, soname in links.items():
        if path.is_symlink():
            path.unlink()
            path.write_text(f"INPUT ( {soname} )\n", encoding="utf-8")


def arrange(prefix: Path, package: Path, scripts: Path) -> None:
    """Moves what is installed at `prefix` into the package's folder, which may be anywhere."""
    for part in ("bin", "lib", "include", "share"):
        (prefix / part).mkdir(exist_ok=True)  # without programs there are no such
        shutil.move(prefix / part, package / part)
    (package / "bin/tutti-transport-test").unlink(missing_ok=True)  # for authors of transports
    lib = package / "lib"
    without_symlinks(lib)
    libtutti = next(lib.rglob("libtutti.so.0"))
    scripts.mkdir(parents=True)
    for program in list((package / "bin").iterdir()):
        (scripts / program.name).write_text(LAUNCHER.format(program.resolve().name), encoding="utf-8")
        (scripts / program.name).chmod(0o755)
        if program.is_symlink():  # a program's other name
            program.unlink()
        else:
            run("patchelf", "--set-rpath", "$ORIGIN/../" + str(libtutti.parent.relative_to(package)), program)
    for stripped in [*(package / "bin").iterdir(), *lib.rglob("*.so*")]:
        if stripped.read_bytes()[:4] == b"\x7fELF":
            run("strip", "--strip-unneeded", stripped)
    for described in lib.rglob("*.pc"):
        to_package = os.path.relpath(package, described.parent)
        text = re.sub("^prefix=.*", "prefix=${pcfiledir}/" + to_package, described.read_text(), flags=re.M)
        described.write_text(re.sub("^(Libs|Requires).private:.*\n", "", text, flags=re.M))


def keep_library(package: Path, scripts: Path) -> None:
    """Users without torch get what Python needs. Programs and headers are in the other wheel, in the same places."""
    shutil.rmtree(scripts.parent)
    for part in ("bin", "include", "share"):
        shutil.rmtree(package / part)
    for path in sorted((package / "lib").rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path.name not in ("libtutti.so.0", "libtutti-verbs.so"):
            path.unlink()


def package_of(settings: dict | None) -> str:
    name = (settings or {}).get("package", "tutti_torch")
    if name not in PACKAGES:
        sys.exit(f"-C package={name} is none of {', '.join(PACKAGES)}")
    return name


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: dict | None = None) -> str:
    """Without this pip would build everything once just to know the name."""
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text(encoding="utf-8")).group(1)
    package = package_of(config_settings)
    folder = Path(metadata_directory, f"{package}-{version}.dist-info")
    folder.mkdir()
    if package == "tutti_torch":
        shutil.copy(ROOT / "lib/torch/entry_points.txt", folder)
    metadata = (ROOT / PACKAGES[package] / "METADATA.in").read_text(encoding="utf-8").replace("@version@", version)
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    return folder.name


def build_wheel(wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None) -> str:
    folder, package = built(config_settings or {}), package_of(config_settings)
    with tempfile.TemporaryDirectory() as scratch:
        stage, wheel = Path(scratch, "stage"), Path(scratch, "wheel")
        run("meson", "install", "-C", folder, "--no-rebuild", "--quiet", "--destdir", stage)
        site = next(stage.rglob(package + "/__init__.py")).parents[1]
        info = next(site.glob(package + "-*.dist-info"))
        wheel.mkdir()
        for part in (site / package, info):
            shutil.move(part, wheel)
        for other in PACKAGES:
            for path in (site / other, *site.glob(other + "-*.dist-info")):
                shutil.rmtree(path, ignore_errors=True)
        prefix = next(stage.rglob("include/tutti/tutti.h")).parents[2]
        scripts = wheel / info.with_suffix(".data").name / "scripts"
        arrange(prefix, wheel / package, scripts)
        if package == "tutti_array":
            keep_library(wheel / package, scripts)
        platform = re.sub("[-.]", "_", sysconfig.get_platform())
        tags = f"Wheel-Version: 1.0\nGenerator: tutti\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n"
        (wheel / info.name / "WHEEL").write_text(tags)
        said = run(sys.executable, "-m", "wheel", "pack", "--dest-dir", wheel_directory, wheel)
    return re.search(rf"{package}-\S+\.whl", said).group()
