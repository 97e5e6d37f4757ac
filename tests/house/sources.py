"""Simple rules for every file: length, and that the tree names nobody's machine."""
import sys

import tree

MAX_LINES = 500
# In two parts, so that this file does not break its own rule.
FOREIGN = ["/" + "work/", "/" + "root/"]


def complaints_of(path, text, is_code):
    lines = text.splitlines()
    found = []
    if is_code and len(lines) > MAX_LINES:
        found.append(f"{path}: {len(lines)} lines; a room that wants dividing (at most {MAX_LINES})")
    for number, line in enumerate(lines, 1):
        found += [f"{path}:{number}: names a path of one machine: {word}" for word in FOREIGN if word in line]
    return found


def self_test():
    cases = [(complaints_of("a.cpp", "x\n" * (MAX_LINES + 1), True), 1), (complaints_of("a.cpp", "x\n" * MAX_LINES, True), 0),
             (complaints_of("a.md", f"x\nsee {FOREIGN[0]}main\n", False), 1),
             (complaints_of("a.md", "x\n" * (MAX_LINES + 1), False), 0)]
    tree.finish([str(found) for found, expected in cases if len(found) != expected], len(cases))


def main():
    if "--self-test" in sys.argv:
        self_test()
    code = set(tree.code_files())
    found = []
    paths = list(tree.files())
    for path in paths:
        text = (tree.ROOT / path).read_bytes().decode("utf-8", errors="replace")
        found += complaints_of(path, text, path in code)
    tree.finish(found, len(paths))


if __name__ == "__main__":
    main()
