"""man_pages.py VERSION FOLDER PROGRAM...: writes FOLDER/NAME.1 for each program, made of what its --help says. What has no slash is
another name of the program before it."""
import re
import subprocess
import sys
from pathlib import Path

# Matches "  -b,--minbytes TEXT [32M]    smallest size", and the same for subcommands and positional arguments.
ENTRY = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")
MORE = re.compile(r"^ {6,}(\S.*)$")


def quoted(text):
    text = text.replace("\\", "\\\\").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^\.", "\\\\&.", text)


def parts_of(text):
    """The description, and the sections as (title, lines). The usage line and what CLI11 repeats are left out."""
    description, sections = [], []
    for line in text.splitlines():
        title = re.match(r"^(?:\[Option Group: )?(\w[\w ]*?)\]?:\s*$", line)
        if line.startswith("Usage:"):
            continue
        if title:
            sections.append((title[1], []))
        elif sections:
            sections[-1][1].append(line)
        elif line.strip():
            description.append(line.strip())
    return description, sections


def page(name, version, text, texts_of_subcommands):
    description, sections = parts_of(text)
    for subcommand, said in texts_of_subcommands.items():
        sections += [(f"{title} of {subcommand}", lines) for title, lines in parts_of(said)[1]]
    usage = re.search(r"^Usage: *(.*)$", text, re.M)
    first = description[0].rstrip(".")
    out = [f".TH {name.upper()} 1 \"\" \"Tutti {version}\"", ".SH NAME", f"{quoted(name)} \\- {quoted(first[0].lower() + first[1:])}"]
    synopsis = re.sub(r"^\S+", name, usage[1]) if usage else f"{name} [OPTIONS]"
    out += [".SH SYNOPSIS", quoted(synopsis), ".SH DESCRIPTION", *map(quoted, description)]
    for title, lines in sections:
        out.append(f".SH {title.upper()}")
        if title == "Examples":
            out += [".nf", *map(quoted, lines), ".fi"]
            continue
        for line in lines:
            entry, more = ENTRY.match(line), MORE.match(line)
            if more and out[-1][0] != ".":
                out.append(quoted(more[1]))
            elif entry:
                out += [".TP", f"\\fB{quoted(entry[1])}\\fR", *([quoted(entry[2])] if entry[2] else [])]
            elif line.strip():
                out += [".PP", quoted(line.strip())]
    return "\n".join(out) + "\n"


def help_of(program, *command):
    return subprocess.run([*command, "--help"], executable=program, check=True, capture_output=True, text=True, timeout=60).stdout


def main():
    version, folder = sys.argv[1:3]
    program = ""
    for argument in sys.argv[3:]:
        program = argument if "/" in argument else program
        name = Path(argument).name
        text = help_of(program, name)
        lines = dict(parts_of(text)[1]).get("Subcommands", [])
        subcommands = {line.split()[0]: help_of(program, name, line.split()[0]) for line in lines if line.strip()}
        Path(folder, name + ".1").write_text(page(name, version, text, subcommands), encoding="utf-8")


if __name__ == "__main__":
    main()
