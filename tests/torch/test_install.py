"""How users get the backend: the README's program, pip install, meson install, imports in any order, and what an import says
without libtutti. The tests run where run.sh has installed the package."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import prerequisites
import ranks

prerequisites.require()

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ["TUTTI_LIBRARY"])
BUILD = Path(os.environ["BUILT_LIBRARY"]).parent
SITE = Path(importlib.util.find_spec("tutti_torch").origin).parents[1]
# Run after an import. tutti_torch need not be imported before: torch finds the installed backend.
PROGRAM = """
import sys, torch, torch.distributed as dist
dist.init_process_group("tutti", init_method="file://" + sys.argv[1], rank=0, world_size=1)
t = torch.ones(3)
dist.all_reduce(t)
dist.destroy_process_group()
import tutti_torch
print(tutti_torch.__file__)
"""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "lib/torch/README.md").read_text(encoding="utf-8"), re.M | re.S)


def run(command, **options):
    done = subprocess.run(
        list(map(str, command)), text=True, timeout=200, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
    if done.returncode:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Install(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)

    def environment(self, path, **more):
        names = {name: value for name, value in os.environ.items() if name not in ("TUTTI_LIBRARY", "PYTHONPATH")}
        return {**names, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", **more}

    def test_readme(self):
        programs = [block for block in blocks("python") if "init_process_group" in block]
        outputs = [block for block in blocks("text") if block.startswith("$ torchrun")]
        self.assertEqual((len(programs), len(outputs)), (1, 1))
        command, expected = outputs[0].split("\n", 1)
        example = self.scratch / "example.py"
        example.write_text(programs[0], encoding="utf-8")
        launch = command.removeprefix("$ torchrun ").replace("example.py", str(example)).split()
        environment = self.environment(SITE, TUTTI_LIBRARY=str(LIBRARY))
        output = run([sys.executable, "-m", "torch.distributed.run", *launch], env=environment)
        # The ranks share a pipe, and one may write between another's text and its newline.
        remaining = output
        for line in expected.splitlines():
            self.assertEqual(output.count(line), 1, output)
            remaining = remaining.replace(line, "")
        self.assertEqual(remaining.strip(), "")

    def imports(self, statement, path, code=PROGRAM, **more):
        """Runs the program with one rank after this statement; the package must be the one in this folder."""
        with self.subTest(statement, **more):
            environment = self.environment(path, TUTTI_LIBRARY=str(LIBRARY), **more)
            (self.scratch / "store").unlink(missing_ok=True)
            program = [sys.executable, "-c", statement + code, self.scratch / "store"]
            self.assertEqual(run(program, env=environment, cwd=self.scratch).strip(), f"{path}/tutti_torch/__init__.py")

    def test_orders_of_imports(self):
        self.assertNotEqual(SITE, ROOT / "lib/torch")
        for statement in (
            "import tutti_torch",
            "import torch",
            "import torch.distributed",
            "import torch, tutti_torch",
            "from tutti_torch import TuttiError",
            "import tutti_torch.library",
        ):
            self.imports(statement, SITE)

    def test_monitored_barrier_by_name(self):
        """Before there is a group, whatever brings in the package."""
        code = PROGRAM.replace("dist.all_reduce(t)", "monitored_barrier()")
        for statement in ("", "import tutti_torch; ", "import torch; "):
            self.imports(statement + "from torch.distributed import monitored_barrier", SITE, code)

    def test_without_autoload(self):
        """Then the package must be imported, before torch or after it."""
        for statement in ("import tutti_torch", "import torch, tutti_torch"):
            self.imports(statement, SITE, TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    def test_source(self):
        self.imports("import tutti_torch", ROOT / "lib/torch")

    def test_meson(self):
        """The installed package finds the library that was installed with it."""
        meson = shutil.which("meson")
        if meson is None or not (BUILD / "build.ninja").exists():
            self.skipTest("there is no meson, or libtutti is not in a build directory")
        root = self.scratch / "root"
        run([meson, "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", root])
        packages = list(root.rglob("tutti_torch/__init__.py"))
        self.assertEqual(len(packages), 1)
        installed = {path.name for path in packages[0].parent.glob("*.py")}
        self.assertEqual(installed, {path.name for path in (ROOT / "lib/torch/tutti_torch").glob("*.py")})
        environment = self.environment(packages[0].parents[1])
        program = PROGRAM + "\nprint(getattr(tutti_torch.calls.load(), '__file__', 'absent'))"
        output = run([sys.executable, "-c", program, self.scratch / "store"], env=environment, cwd=self.scratch)
        package, module = output.split()
        self.assertTrue(package.startswith(str(root)), output)
        built = (LIBRARY.parent / "libtutti-torch.so").exists()
        self.assertEqual([module], [str(path) for path in root.rglob("libtutti-torch.so")] if built else ["absent"])

    def load_error(self, library):
        environment = self.environment(SITE / "tutti_torch", TUTTI_LIBRARY=str(library))
        code = "import library\ntry: library.load()\nexcept ImportError as e: print(e)"  # torch would take seconds
        return run([sys.executable, "-c", code], env=environment)

    def test_library_that_is_not_there(self):
        self.assertRegex(self.load_error("/nowhere/libtutti.so.0"), "not found.*/nowhere/libtutti.so.0.*TUTTI_LIBRARY")

    def test_folder_of_the_library(self):
        self.assertEqual(self.load_error(LIBRARY.parent), "")

    def test_library_that_lacks_another(self):
        """The file exists, so the message must not say that it was not found."""
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("there is no cc")
        for name, needs in (("libneeded.so", []), ("libtutti.so.0", ["-Wl,--no-as-needed", "libneeded.so"])):
            run([compiler, "-shared", "-fPIC", "-o", name, "-x", "c", "/dev/null", "-x", "none", *needs], cwd=self.scratch)
        (self.scratch / "libneeded.so").unlink()
        said = self.load_error(self.scratch)
        self.assertRegex(said, "libtutti.so.0 exists, but cannot be loaded .*libneeded.so")
        self.assertNotIn("not found", said)


if __name__ == "__main__":
    ranks.main()
