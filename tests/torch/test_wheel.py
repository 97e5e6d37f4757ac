"""The wheel of tools/make-wheel in a clean virtual environment: its programs, and a C program built with its headers by CMake
and by pkg-config. Its Python package is what the other tests here run on. Skipped where there is no wheel of this build."""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import install
import prerequisites

ROOT = Path(__file__).resolve().parents[2]
WHEEL = install.wheel(Path(os.environ["BUILT_LIBRARY"]))
if WHEEL is None:
    prerequisites.skip("there is no wheel of this build (tools/make-wheel -C build-dir=build makes it)")

CMAKE = """cmake_minimum_required(VERSION 3.16)
project(example C)
find_package(Tutti REQUIRED)
add_executable(example example.c)
target_link_libraries(example Tutti::tutti)
"""


# Variables of the build and of the test run.
NOT_A_USERS = ("TUTTI_LIBRARY", "PYTHONPATH", "LD_LIBRARY_PATH")


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = Path(scratch.name)
        cls.run_in("/", sys.executable, "-m", "venv", cls.scratch / "venv")
        cls.bin = cls.scratch / "venv/bin"
        cls.run_in("/", cls.bin / "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-index", WHEEL)
        cls.package = next((cls.scratch / "venv").glob("lib/python*/site-packages/tutti_torch"))

    @staticmethod
    def run_in(folder, *command, **more):
        environment = {k: v for k, v in os.environ.items() if k not in NOT_A_USERS}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = list(map(str, command))
        done = subprocess.run(command, cwd=folder, env={**environment, **more}, timeout=200, **streams)
        if done.returncode:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def test_tag(self):
        """Any Python 3, and systems with this glibc or a newer one."""
        self.assertRegex(WHEEL.name, r"^tutti_torch-[\d.]+-py3-none-manylinux_\d+_\d+_\w+\.whl$")
        with zipfile.ZipFile(WHEEL) as wheel:
            self.assertEqual([name for name in wheel.namelist() if name.endswith(".so.0.1.0")], [])

    def test_programs(self):
        programs = {path.name for path in self.bin.glob("tutti-*")}
        self.assertGreaterEqual(programs, {path.name for path in (self.package / "bin").iterdir()})
        self.assertGreaterEqual(programs, {"tutti-all-reduce-perf", "tutti-barrier-perf", "tutti-topo"})
        for program in programs:
            with self.subTest(program):
                usage = self.run_in("/", self.bin / program, "--help")
                self.assertIn("Usage: ", usage)
                if program.endswith("-perf"):  # one program with many names
                    self.assertIn(program, usage)
        said = self.run_in("/", self.bin / "tutti-all-reduce-perf", "-b", "8", "-e", "64K", "-f", "64", "--procs", "2")
        self.assertIn("# Out of bounds values : 0 OK", said)

    def test_needs_nothing_of_the_system(self):
        """Except those that every manylinux system has."""
        libtutti = next(self.package.glob("lib/**/libtutti.so.0"))
        said = self.run_in("/", "ldd", libtutti)
        for name in ("libsodium", "libhwloc"):
            where = re.findall(rf"{name}\S* => (\S+)", said)
            self.assertTrue(all("/tutti_torch.libs/" in path for path in where), said)

    def test_size(self):
        libtutti = next(self.package.glob("lib/**/libtutti.so.0"))
        if b".nv_fatbin" in libtutti.read_bytes():
            self.skipTest("this wheel has GPU code in it")
        self.assertLess(WHEEL.stat().st_size, 5_000_000)

    def example(self):
        source = re.search(r"^```c\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)[1]
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        (folder / "example.c").write_text(source, encoding="utf-8")
        return folder

    def check_example(self, program):
        self.assertIn("the last sum is 999", self.run_in("/", program, TUTTI_RANK="0", TUTTI_NRANKS="1", TUTTI_ROOT=f"localhost:{free_port()}"))
        self.assertIn(str(self.package), self.run_in("/", "ldd", program))

    @unittest.skipUnless(shutil.which("cmake"), "there is no cmake")
    def test_cmake(self):
        folder = self.example()
        (folder / "CMakeLists.txt").write_text(CMAKE, encoding="utf-8")
        self.run_in(folder, "cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={self.package}")
        self.run_in(folder, "cmake", "--build", "build")
        self.check_example(folder / "build/example")

    @unittest.skipUnless(shutil.which("pkg-config") and shutil.which("cc"), "there is no cc or no pkg-config")
    def test_pkg_config(self):
        folder = self.example()
        pc = next(self.package.glob("lib/**/tutti.pc")).parent
        flags = self.run_in("/", "pkg-config", "--cflags", "--libs", "tutti", PKG_CONFIG_PATH=str(pc)).split()
        libdir = next(flag[2:] for flag in flags if flag.startswith("-L"))
        self.run_in(folder, "cc", "-std=c99", "example.c", *flags, f"-Wl,-rpath,{libdir}", "-o", "example")
        self.check_example(folder / "example")


if __name__ == "__main__":
    unittest.main()
