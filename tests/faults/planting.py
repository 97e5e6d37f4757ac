"""Diffs that are planted side by side in one copy of the tree, each switched on by its name: faults (tests/faults/run) and
fast paths to do without (tests/ablation/run)."""
import itertools
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "house"))
import tree  # noqa: E402


def hunks_of(diff):
    """The file and the lines of each hunk."""
    for part in re.split(r"^--- a/.*\n\+\+\+ b/", diff, flags=re.M)[1:]:
        path, hunks = part.split("\n", 1)
        for hunk in re.split(r"^(?=@@)", hunks, flags=re.M)[1:]:
            yield path, hunk.splitlines()


def edits_of(diff, path, hunk):
    """Which lines become which, if the hunk's lines and its context are in the file."""
    lines = tree.read(path).splitlines()
    before = [line[1:] for line in hunk[1:] if line[0] in " -"]
    named = int(re.match(r"@@ -(\d+)", hunk[0])[1]) - 1
    places = [i for i in range(len(lines) - len(before) + 1) if lines[i:i + len(before)] == before]
    if not places:
        sys.exit(f"{diff} does not fit {path} any more: make it anew, or remove it if what it breaks is gone")
    at = min(places, key=lambda place: abs(place - named))
    for kind, run in itertools.groupby(hunk[1:], key=lambda line: line[0]):
        run = [line[1:] for line in run]
        if kind == "+":
            yield at, at, run
            continue
        if kind == "-":
            yield at, at + len(run), []
        at += len(run)


class Diff:
    """NAME.diff, whose code asks `question`("NAME") and whose first line matches `head`, which `form` describes."""
    def __init__(self, path, question, head, form):
        self.name, self.path, text = path.stem, path, path.read_text()
        self.head = head.fullmatch(text.splitlines()[0])
        if self.head is None:
            sys.exit(f"{path}: the first line is not \"{form}\"")
        if f'{question}("{self.name}")' not in text:
            sys.exit(f'{path}: nothing in it asks {question}("{self.name}")')
        self.edits = [(file, *edit) for file, hunk in hunks_of(text) for edit in edits_of(self.path, file, hunk)]
        self.room = str(pathlib.PurePath(self.edits[0][0]).parent)


def planted(diffs, header=None):
    """The files with all diffs applied. Edits in one file do not shift each other. `header` is included first."""
    changed_by, edits = {}, {}
    for diff in diffs:
        for path, begin, end, new in diff.edits:
            for i in range(begin, end):
                if changed_by.setdefault((path, i), diff.name) != diff.name:
                    sys.exit(f"{diff.name} and {changed_by[path, i]} change line {i + 1} of {path}: only one can")
            edits.setdefault(path, []).append((begin, end, new))
    texts = {}
    for path, all_edits in edits.items():
        lines = tree.read(path).splitlines()
        for begin, end, new in sorted(all_edits, key=lambda edit: edit[:2], reverse=True):
            lines[begin:end] = new
        texts[path] = "\n".join([f'#include "{header}"'] * bool(header) + lines) + "\n"
    return texts


def copy_tree(diffs, header, to):
    """Unchanged files keep their times, so that little is built again."""
    texts, paths = planted(diffs, to / header), set(tree.files())
    for path in paths:
        new = texts[str(path)].encode() if str(path) in texts else (tree.ROOT / path).read_bytes()
        target = to / path
        if not target.exists() or target.read_bytes() != new:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(new)
            shutil.copymode(tree.ROOT / path, target)
    for path in [t.relative_to(to) for t in to.rglob("*") if t.is_file()]:
        if path not in paths and path.parts[0] != "build":
            (to / path).unlink()


def build(folder, diffs, header, options, programs):
    """Builds a copy of the tree with all diffs applied; `header` comes first in the files that they change. The other
    files hit a compiler cache as in a build of the tree itself. Programs over CUDA that cannot be built here are left out."""
    source = folder.resolve()
    built, made_with = source / "build", source / "build" / "planted_with.txt"
    source.mkdir(parents=True, exist_ok=True)
    copy_tree(diffs, header, source)
    if not made_with.exists() or made_with.read_text() != str(options):
        again = ["--reconfigure"] * (built / "build.ninja").exists()
        subprocess.run(["meson", "setup", built, source, *again, *options], check=True, stdout=subprocess.DEVNULL)
        made_with.write_text(str(options))
    subprocess.run(["ninja", "-C", built, "build.ninja"], check=True, stdout=subprocess.DEVNULL)  # for the current tree
    known = subprocess.run(["ninja", "-C", built, "-t", "targets", "all"], check=True, capture_output=True, text=True)
    programs = [p for p in programs if f"\n{p}: " in known.stdout or not p.startswith("tests/cuda/")]
    folders = {p.rpartition("/")[0] for p in programs}  # and the modules that they load
    modules = [m for m in re.findall(r"^(\S+\.so): ", known.stdout, re.M) if m.rpartition("/")[0] in folders]
    subprocess.run(["ninja", "-C", built, *programs, *modules], check=True)
    return built
