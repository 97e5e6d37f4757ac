"""Each source compiles separately: a build that joins several into one (Meson's unity) hides missing includes.
each_source.py BUILD checks everything that BUILD compiles; with --self-test, that it finds a source that does not compile."""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import tree

JOINED = re.compile(r'^#include\s*[<"](?P<path>[^>"]+\.cpp)[>"]', re.M)


def sources_of(entry):
    """The compiled file, or the files that it joins."""
    folder = pathlib.Path(entry["directory"])
    file = folder / entry["file"]
    joined = JOINED.findall(file.read_text(encoding="utf-8")) if "-unity" in file.name and file.is_file() else []
    return [os.path.realpath(folder / path) for path in joined] or [os.path.realpath(file)]


def complaint(command, folder, source):
    """The compiler's message if it refuses a source."""
    words = shlex.split(command)
    kept = [word for k, word in enumerate(words) if word not in ("ccache", "-c", "-MD", "-o", "-MF", "-MQ")
            and words[k - 1] not in ("-o", "-MF", "-MQ", "-c")]
    done = subprocess.run([*kept, "-fsyntax-only", "-fdiagnostics-color=never", source], cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)


def commands(build):
    """By source, where and how it is compiled; without generated and downloaded sources."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        for source in sources_of(entry):
            if source.endswith(".cpp") and source.startswith(f"{tree.ROOT}/") and not source.startswith(f"{build}/"):
                found.setdefault(source, (entry["command"], entry["directory"]))
    return found


def check(found):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        tried = {source: pool.submit(complaint, *where, source) for source, where in found.items()}
    return {source: said for source, future in tried.items() if (said := future.result())}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        good, bad = pathlib.Path(folder, "good.cpp"), pathlib.Path(folder, "bad.cpp")
        good.write_text("int known() { return 1; }\n", encoding="utf-8")
        bad.write_text("int use() { return known(); }\n", encoding="utf-8")
        found = check({str(file): (f"c++ -o x.o -c {file}", folder) for file in (good, bad)})
    if list(found) != [str(bad)]:
        sys.exit(f"each_source.py: of a good and a bad source it refuses {list(found)}")


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    found = commands(pathlib.Path(os.path.realpath(sys.argv[1])))
    refused = check(found)
    for source, said in refused.items():
        print(f"{os.path.relpath(source, tree.ROOT)} does not compile by itself: {said}")
    print(f"{len(found)} checked, {len(refused)} wrong")
    sys.exit(1 if refused or not found else 0)


if __name__ == "__main__":
    main()
