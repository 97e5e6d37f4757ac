"""Every TUTTI_ variable that the code reads is in the table of lib/base/env.cpp, and the table of include/tutti/README.md is that table."""
import re

import tree

ENTRY = re.compile(r'^  \{"(TUTTI_\w+)",\s*"([^"]*)",', re.M)
README_ROW = re.compile(r"^\| `(TUTTI_\w+)` \|([^|]*)\|", re.M)
LITERAL = re.compile(r'"(TUTTI_[A-Z0-9_]+)"')
GETENV = re.compile(r'\bgetenv\s*\(\s*"(TUTTI_\w+)"')


def compare(table, readme):
    found = [f"{name} is in env.cpp but not in the table of include/tutti/README.md" for name in table.keys() - readme.keys()]
    found += [f"{name} is in the table of include/tutti/README.md but not in env.cpp" for name in readme.keys() - table.keys()]
    for name in table.keys() & readme.keys():
        if table[name] != readme[name]:
            found.append(f"{name}: the default is '{table[name]}', include/tutti/README.md says '{readme[name]}'")
    return found


def main():
    table = dict(ENTRY.findall(tree.read("lib/base/env.cpp")))
    readme = {name: default.strip().strip("`") for name, default in README_ROW.findall(tree.read("include/tutti/README.md"))}
    found = compare(table, readme)
    if not compare({"TUTTI_A": "1"}, {"TUTTI_A": "2"}) or not compare({"TUTTI_A": ""}, {}) or not compare({}, {"TUTTI_A": ""}):
        found.append("this test does not find planted differences")
    for path in tree.files():
        if path.suffix not in (".cpp", ".h", ".py") or path.parts[0] not in ("lib", "kernels", "transports", "tools"):
            continue
        text = tree.read(path)
        found += [f"{path}: {name} is not in env.cpp" for name in LITERAL.findall(text) if name not in table]
        found += [f"{path}: read {name} through base/env.h" for name in GETENV.findall(text)]
    tree.finish(found, len(table))


if __name__ == "__main__":
    main()
