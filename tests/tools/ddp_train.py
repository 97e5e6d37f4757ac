"""Runs ddp_train as a user does and compares the losses that it reports. ddp_train.py PROGRAM"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = sys.argv[1]
SMALL = ["--hidden", "64", "--layers", "2", "--embedding", "8", "--context", "8", "--batch", "120", "--log-every", "1",
         "--first-bucket", "4096", "--bucket", "16384"]
STEPS = 30


class Run:
    """One training run: its exit status, what it wrote, and its figures if it finished."""

    def __init__(self, *arguments, env=None):
        with tempfile.TemporaryDirectory() as folder:
            figures = Path(folder, "figures.json")
            written = [] if "--scaling" in arguments else ["--json", str(figures)]
            command = [PROGRAM, *SMALL, "--steps", str(STEPS), *written, *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
            self.figures = json.loads(figures.read_text()) if figures.exists() else {}
        self.command, self.status, self.output = " ".join(command), done.returncode, done.stdout + done.stderr
        self.losses = dict(self.figures.get("losses", []))

    def check(self, truth, claim):
        if not truth:
            sys.exit(f"{self.command}\n{self.output}\nexit status {self.status}; failed: {claim}")

    def good(self):
        self.check(self.status == 0 and list(self.losses) == list(range(1, STEPS + 1)), "ends well, with all losses")
        return self

    def distance(self, other):
        return max(abs(self.losses[step] - other.losses[step]) for step in self.losses)


def ranks_do_not_matter():
    one = Run("--procs", 1).good()
    one.check(one.losses[STEPS] < one.losses[1] - 0.3, "learns")
    other = Run("--procs", 1, "--seed", 2).good()
    other.check(other.distance(one) > 1e-2, "another seed gives other losses, so that equal ones mean something")
    for arguments in (["--procs", 2], ["--procs", 3], ["--procs", 5], ["--procs", 3, "--threads"],
                      ["--procs", 2, "--no-overlap"], ["--procs", 2, "--accumulate", 4], ["--procs", 1, "--accumulate", 7],
                      ["--procs", 2, "--check-every", 1], ["--procs", 2, "--loss-scale", 1024]):
        run = Run(*arguments).good()
        run.check(run.distance(one) < 1e-4, f"the losses of one rank; the distance is {run.distance(one)}")
    return one


def less_precision(one):
    for arguments in (["--gradients", "bfloat16"], ["--compress", "fp16"], ["--compress", "bf16"], ["--compress", "int8"],
                      ["--compress", "e4m3", "--error-feedback"], ["--compress", "powersgd"]):
        run = Run("--procs", 3, *arguments).good()
        run.check(0 < run.distance(one) < 0.1, f"near the losses of one rank; the distance is {run.distance(one)}")


def overflow_is_skipped_by_all(one):
    run = Run("--procs", 3, "--compress", "fp16", "--loss-scale", 2.0**30).good()
    skipped = run.figures["skipped_steps"]
    run.check(skipped > 0 and run.figures["loss_scale"] == 2.0 ** (30 - skipped), "the scale is halved when a step is skipped")
    run.check(run.losses[STEPS] < one.losses[1] - 0.3, "learns when the scale fits")


def checkpoints(folder, one):
    path = folder / "run.bin"
    first = Run("--procs", 2, "--steps", 12, "--checkpoint", path, "--resume")
    first.check(first.status == 0 and "does not exist yet" in first.output, "begins anew without a file")
    second = Run("--procs", 3, "--checkpoint", path, "--resume", "--checkpoint-every", 5)
    second.check(second.status == 0 and list(second.losses) == list(range(13, STEPS + 1)), "goes on, with other ranks")
    second.check(second.distance(one) < 1e-4, "as if it had not been interrupted")
    second.check(second.figures["samples_per_second"] > 0, "says how fast it was")
    second.check([f.name for f in folder.iterdir()] == ["run.bin"], "leaves nothing else behind")
    other = Run("--procs", 2, "--hidden", 32, "--checkpoint", path, "--resume")
    other.check(other.status == 3 and "belongs to another model" in other.output, "another model is refused")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    damaged = Run("--procs", 2, "--checkpoint", path, "--resume")
    damaged.check(damaged.status == 3 and "is damaged" in damaged.output, "a damaged file is refused")
    path.write_bytes(content[:100])
    short = Run("--procs", 2, "--checkpoint", path, "--resume")
    short.check(short.status == 3 and "is damaged" in short.output, "a short file is refused")
    full = Run("--procs", 2, "--checkpoint", "/dev/full")
    full.check(full.status == 3 and "/dev/full: cannot be written: No space" in full.output, "a full disk is an error")
    full.check(Path("/dev/full").is_char_device(), "a device is not replaced")


def children_that_nobody_wants_to_hear_of():
    """With a parent that ignores SIGCHLD, which is inherited."""
    code = "import os, signal, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nos.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", code, PROGRAM, *SMALL, "--procs", "2", "--data", "/nonexistent"]
    status = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=120).returncode
    if status != 3:
        sys.exit(f"with SIGCHLD ignored, ranks that fail end with {status}")


def a_rank_dies(one):
    for victim in (0, 1):
        run = Run("--procs", 3, "--die", f"{victim}@10", "--no-overlap")
        run.check(run.status == 0 and f"rank {victim} was killed by signal 9" in run.output, "the others end well")
        run.check(f"continuing with 2" in run.output and run.figures["ranks"] == 2, "two go on")
        # Rank 0's log is lost with it.
        run.check(set(run.losses) >= set(range(11, STEPS + 1)), "all further steps are there")
        run.check(run.distance(one) < 1e-4, "nothing but rounding tells the loss of a rank")
        run.check(run.figures["samples_per_second"] > 0, "says how fast those were that are left")
    twice = Run("--procs", 1, "--die", "0@10")
    twice.check(twice.status == 3, "nobody is left")


def wrong_usage():
    for arguments, part in ((["--procs", 7], "--batch 120 cannot be divided among 7 ranks"),
                            (["--procs", 2, "--die", "x"], "--die is 'x'"), (["--procs", 2, "--resume"], "--checkpoint"),
                            (["--procs", 2, "--gradients", "int8"], "--gradients"), (["--nonsense"], "nonsense"),
                            (["--procs", 2, "--scaling", "--steps", 3], "--scaling needs more than 3 steps"),
                            (["--procs", 2, "--scaling", "--json", "x"], "--scaling prints a table and no more"),
                            (["--procs", 2, "--scaling", "--checkpoint", "x"], "--scaling prints a table and no more"),
                            (["--procs", 2, "--scaling", "--die", "1@2"], "--scaling prints a table and no more"),
                            (["--procs", 2, "--die", "2@1"], "ranks 0 to 1"),
                            (["--procs", 2, "--die", f"1@{STEPS}"], f"steps 0 to {STEPS - 1}")):
        run = Run(*arguments)
        run.check(run.status == 2 and part in run.output, f"wrong usage, with '{part}'")
    for arguments in (["--procs", 2], ["--scaling"]):
        twice = Run(*arguments, env={**os.environ, "RANK": "1", "WORLD_SIZE": "2"})
        twice.check(twice.status == 2 and f"leave out {arguments[0]}," in twice.output,
                    f"{arguments[0]} in several processes is refused")
    missing = Run("--procs", 2, "--data", "/nonexistent")
    missing.check(missing.status == 3 and "/nonexistent" in missing.output, "the missing file is named")
    short = Run("--procs", 2, "--data", "/dev/null")
    short.check(short.status == 2 and "0 characters" in short.output, "an empty text is an error")


def what_cannot_be_written(env):
    """A full disk under stdout, whoever prints; and a folder that is not there, which is found before the training."""
    for arguments, environment in ((["--procs", 2], None), (["--procs", 2, "--threads"], None), ([], env), (["--help"], None)):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, *SMALL, "--steps", "2", *map(str, arguments)], stdout=full, stderr=subprocess.PIPE,
                                  text=True, timeout=120, env=environment)
        if done.returncode == 0 or "stdout cannot be written" not in done.stderr:
            sys.exit(f"{arguments}: stdout on a full disk ends with {done.returncode} and says: {done.stderr}")
    for arguments, environment in ((["--procs", 2], None), ([], env)):
        run = Run(*arguments, "--json", "/nonexistent/figures.json", env=environment)
        run.check(run.status == 3 and "--json /nonexistent/figures.json: cannot be written: No such file" in run.output and
                  "loss" not in run.output, "a folder that does not exist is found before the training")
        run = Run(*arguments, "--steps", 1000000, "--checkpoint", "/nonexistent/run.bin", env=environment)
        run.check(run.status == 3 and "--checkpoint /nonexistent/run.bin.new: cannot be written: No such file" in run.output and
                  "step 1/" not in run.output, "that no checkpoint can be written is found before the training")
    with tempfile.TemporaryDirectory() as folder:
        run = Run("--procs", 2, "--json", folder)
        run.check(run.status == 3 and f"--json {folder}: cannot be written: Is a directory" in run.output and
                  "loss" not in run.output, "that a folder is no file is found before the training")
        figures = Path(folder, "figures.json")
        run = Run("--procs", 2, "--data", "/nonexistent", "--json", figures)
        run.check(run.status == 3 and not figures.exists(), "a training that fails makes no file")
        run = Run("--procs", 2, "--data", "/nonexistent", "--checkpoint", Path(folder, "run.bin"))
        run.check(run.status == 3 and not os.listdir(folder), "a training that fails makes no checkpoint")


def other_name(folder):
    """It is installed under another name than it has in the tree."""
    named = folder / "tutti-ddp-train"
    named.symlink_to(PROGRAM)
    said = subprocess.run([named, "--help"], capture_output=True, text=True, timeout=120).stdout
    if "tutti-ddp-train --procs 2" not in said or "  ddp_train" in said or "@ " in said:
        sys.exit(f"the help does not have the name that it was called by:\n{said}")


def many_parts(folder):
    """The product of the batch size and its number of parts does not fit an int."""
    text = folder / "text"
    text.write_text("0123456789" * 110000)
    run = Run("--procs", 1, "--steps", 1, "--data", text, "--batch", 2**20, "--accumulate", 4096, "--layers", 0, "--embedding", 1,
              "--context", 1)
    run.check(run.status == 0 and list(run.losses) == [1], "a large batch is trained on in its parts")


def launched_alone():
    return dict(os.environ, TUTTI_RANK="0", TUTTI_NRANKS="1", TUTTI_ROOT=f"127.0.0.1:{20000 + os.getpid() % 20000}",
                TUTTI_SECRET="between us")


def launcher_and_scaling(one):
    env = launched_alone()
    run = Run(env=env).good()
    run.check(run.distance(one) < 1e-4, "the launcher's ranks train alike")
    run = Run("--threads", env=env).good()
    run.check(run.distance(one) < 1e-4, "threads are ranks of their own, whatever the launcher says")
    scaling = Run("--procs", 2, "--scaling")
    rows = [line.split() for line in scaling.output.splitlines() if line.startswith(("strong", "weak"))]
    scaling.check(scaling.status == 0 and len(rows) == 16, "a row for each combination and number of ranks")
    scaling.check({tuple(row[:4]) for row in rows} == {(s, r, o, n) for s in ("strong", "weak") for r in ("processes", "threads")
                                                       for o in ("off", "on") for n in ("1", "2")}, "each once")


def main():
    if not PROGRAM:
        print("skipped: ddp_train was not built, because there is no Eigen (libeigen3-dev)")
        sys.exit(77)
    one = ranks_do_not_matter()
    less_precision(one)
    overflow_is_skipped_by_all(one)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints(Path(folder), one)
    with tempfile.TemporaryDirectory() as folder:
        many_parts(Path(folder))
        other_name(Path(folder))
    a_rank_dies(one)
    children_that_nobody_wants_to_hear_of()
    wrong_usage()
    what_cannot_be_written(launched_alone())
    launcher_and_scaling(one)


main()
