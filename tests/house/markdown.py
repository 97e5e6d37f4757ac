"""Markdown as far as the tests of documents need it: headings, links, tables and fenced code blocks."""
import re
from typing import NamedTuple

import tree

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.M | re.S)
LINK = re.compile(r"\]\(([^()\s]+)\)")
TABLE = re.compile(r"(?:^\|.*\n)+", re.M)


class Block(NamedTuple):
    path: str
    line: int
    language: str
    text: str


def documents():
    return {str(path): tree.read(path) for path in tree.files() if path.suffix == ".md"}


def blocks(language=None, texts=None):
    """The code blocks of all documents, in order."""
    found = []
    for path, text in (texts or documents()).items():
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(path, line, match[2], re.sub(rf"^{match[1]}", "", match[3], flags=re.M)))
    return [block for block in found if language in (None, block.language)]


def without_blocks(text):
    """The same lines, with those of code blocks emptied."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def anchors(text):
    """The anchors that GitHub makes of headings, which a link may name after #."""
    names = []
    for title in re.findall(r"^#+ +(.*)$", without_blocks(text), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        names.append(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return names


def programs():
    """The complete C programs, each with the blocks that follow it up to the next program."""
    found = []
    for block in blocks():
        if block.language == "c" and "int main(" in block.text:
            found.append((block, []))
        elif found and found[-1][0].path == block.path:
            found[-1][1].append(block)
    return found
