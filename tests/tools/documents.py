"""documents.py BUILD_DIR: runs the commands that the documents show, in a folder of its own in which the tree and build/
seem to lie. Of commands that take too long or need what is not here it looks up the program and its options in --help.
Output that a document shows has to come out again, but for its numbers.
"""
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "house"))
sys.dont_write_bytecode = True
import markdown  # noqa: E402
import tree  # noqa: E402

# Not run here, with the reason. The program, if it is the tree's, has to be there and to know the options.
NOT_RUN = [
    (r"(DEB_BUILD_OPTIONS=noopt )?tools/(quickstart|check|gpu-check|verbs-check|make-wheel|make-deb)\b", "builds, or boots a machine"),
    (r"tools/compare\b", "installs other libraries; tests/tools/compare.py runs it"),
    (r"tests/launch/regret\.sh\b", "takes many minutes"),
    (r"tests/faults/run( \w+)?$", "builds the library anew; the suite house runs its --check"),
    (r"tests/ablation/run( .*)?$", "builds the library anew; the suite house runs its --check"),
    (r".*tutti-tune\b", "takes long; tests/tools/tune.sh runs it"),
    (r"(meson compile -C build && sudo meson install|meson test|cc .*example\.c)\b", "tests/house/install.py does this; `meson test` is what runs this"),
    (r"pip install (lib/torch|\.)$", "tests/torch/install.py and tools/make-wheel do this"),
    (r"(\./example|torchrun .*|export .* \./example.*)$", "tests/house/install.py and tests/torch/test_install.py run it"),
    (r"LD_PRELOAD=.* python3 train\.py$", "tests/nccl/preload.py does the like"),
    (r"TUTTI_TRANSPORT_PLUGIN=/opt/", "needs a vendor's plugin"),
    (r"build/tests/schedule/test_schedule \"a test's name\"", "no test has that name"),
    (r".*tools/torch/torch_perf\.py", "takes minutes, and needs torch; tests/torch/test_perf.py runs it"),
    (r".*tests/torch/hangs/table\.py", "takes minutes, and needs torch; tests/torch/test_hangs.py runs what it runs"),
    (r"TUTTI_TRANSPORT_PLUGIN=\./libmine\.so", "takes long; tests/transports runs it"),
]
NCCL_PROGRAM = """#include <nccl.h>
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 10, 0)
#error "a version of Tutti's, which has to be decided by hand"
#endif
int main(void) { ncclComm_t c; return ncclCommInitAll(&c, 1, 0) != ncclSuccess; }
"""


def commands():
    """(block, command, the output shown or None)"""
    for block in markdown.blocks():
        if block.language == "sh":
            for line in block.text.splitlines():
                command = re.sub(r"\s+# .*", "", line).strip()
                if command:
                    yield block, command, None
        elif block.language == "text" and block.text.startswith("$ "):
            command, output = block.text[2:].split("\n", 1)
            yield block, command, output


class Folder:
    """Where commands run: links to the files of the root, build/, and a separate home."""

    def __init__(self, build):
        self.scratch = tempfile.TemporaryDirectory()
        self.path = Path(self.scratch.name)
        for entry in tree.ROOT.iterdir():
            if not entry.name.startswith("build"):
                (self.path / entry.name).symlink_to(entry)
        (self.path / "build").symlink_to(build)
        (self.path / "program.c").write_text(NCCL_PROGRAM, encoding="utf-8")
        (self.path / "traces").mkdir()
        self.env = dict(os.environ, HOME=self.scratch.name, TUTTI_TRACE_DIR=str(self.path / "traces"))
        # Open MPI: root may start ranks in containers, and as many as asked for.
        self.env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        self.env.pop("TUTTI_LIBRARY", None)
        self.usages = {}

    def run(self, command):
        return subprocess.run(["bash", "-c", command], cwd=self.path, env=self.env, text=True, timeout=100,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def usage(self, program):
        if program not in self.usages:
            self.usages[program] = self.run(f"{program} --help").stdout
        return self.usages[program]

    def stopped_job(self):
        """A stopped job of two ranks, for tutti-trace to look at."""
        job = subprocess.Popen(["build/tools/perf/all_reduce_perf", "--procs", "2", "-n", "1000000000", "-b", "8"], cwd=self.path,
                               env=self.env, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while len(list((self.path / "traces").iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGSTOP)
        return job


def option_complaints(folder, command):
    """Checks the tree's programs in a command that is not run, and their options."""
    words = shlex.split(command)
    programs = [i for i, word in enumerate(words) if re.match(r"(tools|tests|build/tools)/", word) and "=" not in word]
    for i in programs[:1]:
        if not (folder.path / words[i]).exists():
            return [f"there is no {words[i]}"]
        if words[i].startswith("tests/"):
            continue
        usage = folder.usage(words[i])
        options = [word.split("=")[0] for word in words[i + 1 :] if word.startswith("-")]
        return [f"{words[i]} --help does not tell of {o}" for o in options if not re.search(rf"(?<![\w-]){o}(?![\w-])", usage)]
    return []


def torchrun_complaints(name, text):
    """torchrun takes a program for a Python script unless it is told otherwise."""
    return [f"{name} names torchrun, but not --no-python"] if "torchrun" in text and "torchrun --no-python" not in text else []


def launcher_complaints(folder):
    found = torchrun_complaints("include/tutti/README.md", (tree.ROOT / "include/tutti/README.md").read_text(encoding="utf-8"))
    for program in ("perf/all_reduce_perf", "tune/tutti-tune", "ddp_train/ddp_train"):
        if (folder.path / "build/tools" / program).exists():
            found += torchrun_complaints(program, folder.usage(f"build/tools/{program}"))
    return found


def normal(line):
    return re.sub(r"\s+", " ", re.sub(r"[\d.]+", "0", line)).strip()


def check(folder, command, output):
    if any(re.match(pattern, command) for pattern, _ in NOT_RUN):
        return option_complaints(folder, command)
    done = folder.run(command)
    if done.returncode:
        return [f"it ends with {done.returncode}:\n{done.stdout[-2000:]}"]
    there = {normal(line) for line in done.stdout.splitlines()}
    if command.startswith("sed "):
        ported = folder.run("cc -fsyntax-only -Iinclude program.c")
        return [f"what sed makes does not compile: {ported.stdout}"] if ported.returncode else []
    return [f"'{line}' does not come out:\n{done.stdout}" for line in (output or "").splitlines() if normal(line) not in there]


def main():
    folder = Folder(Path(sys.argv[1]).resolve())
    job = folder.stopped_job()
    found, checked = [], 0
    try:
        for block, command, output in commands():
            if "mpirun" in command and shutil.which("mpirun") is None:
                print(f"not run, because there is no mpirun: {command}")
                continue
            began = time.monotonic()
            complaints = check(folder, command, output)
            print(f"{block.path}:{block.line}: {command}  ({time.monotonic() - began:.1f} s)", flush=True)
            found += [f"{block.path}:{block.line}: {command}: {what}" for what in complaints]
            checked += 1
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    found += launcher_complaints(folder)
    if not check(folder, "false", None) or not option_complaints(folder, "tools/check --none") or not torchrun_complaints("", "torchrun x"):
        found.append("this test does not find a command that fails, or an option that is not there")
    tree.finish(found, checked)


if __name__ == "__main__":
    main()
