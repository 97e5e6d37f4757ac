"""Documents stay true: README.md is short, links lead somewhere, tables of measurements say how to measure them again, and
every block of code is of a kind that a test compiles or runs.

C: tests/house/install.py. Shell, and text that shows a command: tests/tools/documents.py. Python: tests/torch/test_install.py and tests/numpy."""
import re
from pathlib import Path

import markdown
import tree

README_LINES = 150
# Where blocks of a language may be, because that is where the test looks for them.
WHERE = {"c": r".*", "sh": r".*", "text": r".*", "python": r"lib/(torch|numpy)/README\.md"}
NUMBER = re.compile(r"^[\d.,]+( ?%| / [\d.]+ ?%)?$|^\d+[KMG]$")
COMMAND = re.compile(r"(?:^|[\s`=])((?:tools|tests|build)/[\w./-]+|\w+_perf\b)")


def broken_links(path, text, texts):
    found = []
    for link in markdown.LINK.findall(markdown.without_blocks(text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = Path(path) if name == "" else Path(path).parent / name
        target = Path(*_simplified(target.parts))
        if not (tree.ROOT / target).exists():
            found.append(f"{path}: the link to {link} leads nowhere")
        elif anchor and anchor not in markdown.anchors(texts.get(str(target), "")):
            found.append(f"{path}: the link to {link}: {target} has no such heading")
    return found


def _simplified(parts):
    out = []
    for part in parts:
        if part == "..":
            out.pop()
        else:
            out.append(part)
    return out


def is_measured(table):
    """Whether most cells of the rows, except the first of each, are numbers."""
    rows = [[cell.strip().strip("`") for cell in row.strip().strip("|").split("|")] for row in table.splitlines()[2:]]
    cells = [cell for row in rows for cell in row[1:]]
    return len(cells) > 3 and sum(bool(NUMBER.match(cell)) for cell in cells) > len(cells) / 2


def tables_without_command(path, text):
    """The command is in the paragraph before the table, or after it (a picture may come between)."""
    found = []
    for table in markdown.TABLE.finditer(text):
        if not is_measured(table[0]):
            continue
        before = text[: table.start()].rstrip().split("\n\n")[-1]
        after = [part for part in text[table.end() :].split("\n\n") if not part.strip().startswith("!")][0]
        if not COMMAND.search(before) and not COMMAND.search(after):
            line = text.count("\n", 0, table.start()) + 1
            found.append(f"{path}:{line}: this table does not say which command measures it")
    return found


def complaints(texts):
    found = []
    lines = texts.get("README.md", "").count("\n")
    if lines > README_LINES:
        found.append(f"README.md has {lines} lines: move something to where it belongs (at most {README_LINES})")
    for path, text in texts.items():
        found += broken_links(path, text, texts) + tables_without_command(path, text)
    for block in markdown.blocks(texts=texts):
        if not re.fullmatch(WHERE.get(block.language, ""), block.path):
            found.append(f"{block.path}:{block.line}: no test compiles or runs a block of '{block.language}' here")
    return found


def self_test():
    table = "|a|b|c|\n|---|---|---|\n|x|1|2.5|\n|y|3|4 %|\n"
    planted = {
        "README.md": "line\n" * (README_LINES + 1),
        "lib/a.md": "[b](b.md)",
        "lib/b.md": "# One\n[c](../README.md#none)",
        "lib/c.md": "measured on a Monday:\n\n" + table,
        "lib/d.md": "```ruby\n1\n```\n",
        "lib/e.md": "```python\n1\n```\n",
    }
    good = {
        "README.md": "# Two, `words`\n[a](#two-words) [b](lib/README.md)\n\n```text\n[x](none)\n```\n",
        "lib/c.md": table + "\n![picture](../README.md)\n\nMeasured by `tools/compare --fresh`.\n",
    }
    wrong = [] if len(complaints(planted)) == 6 else [f"of 6 planted mistakes: {complaints(planted)}"]
    return wrong + [f"complains of what is right: {line}" for line in complaints(good)]


def main():
    texts = markdown.documents()
    tree.finish(complaints(texts) + self_test(), len(texts))


if __name__ == "__main__":
    main()
