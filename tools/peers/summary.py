"""From samples to tables: medians, ratios, text and Markdown.

A result is a dictionary: op, ranks, transport, repeats, programs (name, library, kind of each), batches, and computed
from these: state, samples in microseconds by mode, size in bytes (as text, for JSON) and program, limits; notes,
fastest if the fastest samples count instead of the medians, and with --confirm first_repeats and first_batches.
"""
import statistics

import hosts

PRIVATE_FLOORS = ("cma", "bounce", "sockets")  # for buffers that other processes cannot map
MAPPED_FLOORS = ("mapped", "sockets")
OPS = {"all_reduce": "all-reduce, float sum", "broadcast": "broadcast", "all_gather": "all-gather",
       "reduce_scatter": "reduce-scatter, float sum", "reduce": "reduce, float sum", "all_to_all": "all-to-all"}
BLOCK_OPS = ("all_gather", "reduce_scatter", "all_to_all")  # a size is that of a block for each rank
MODES = {"reused": "buffers reused", "fresh": "fresh input, output read (outside of the timing)"}
GREEN, RED, PLAIN = "\033[32m", "\033[31m", "\033[0m"


def bus_factor(op, ranks):
    """The load of the slowest link is a size in bytes per second times this, as in nccl-tests."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1, "reduce": 1}.get(op, (ranks - 1) / ranks)


def least(times, names):
    """(name, time) of the fastest of `names`, or (None, None)."""
    there = [(times[name], name) for name in names if name in times]
    if not there:
        return None, None
    time, name = min(there)
    return name, time


def ratio(time, other):
    return time / other if time is not None and other else None


def row(result, medians, size):
    names = {kind: [p["name"] for p in result["programs"] if p["kind"] == kind] for kind in ("peer", "floor")}
    best, best_time = least(medians, names["peer"])
    private = least(medians, [n for n in names["floor"] if n in PRIVATE_FLOORS])[1]
    mapped = least(medians, [n for n in names["floor"] if n in MAPPED_FLOORS])[1]
    tutti, registered = medians.get("tutti"), medians.get("registered")
    libraries, tunings = {}, {}
    for library in dict.fromkeys(p["library"] for p in result["programs"] if p["kind"] == "peer"):
        name, libraries[library] = least(medians, [p["name"] for p in result["programs"] if p["library"] == library])
        tunings |= {library: name} if name else {}
    return {
        "bytes": size, "microseconds": medians, "libraries": libraries, "tunings": tunings, "best_peer": best,
        "tutti_to_peer": ratio(tutti, best_time), "registered_to_peer": ratio(registered, best_time),
        "tutti_to_floor": ratio(tutti, private), "registered_to_floor": ratio(registered, mapped),
        "tutti_to_old": ratio(tutti, medians.get("old")),
        "registered_to_old": ratio(registered, medians.get("old registered")),
    }


def rows(result, mode):
    """By size. The median counts, or with result["fastest"] the fastest sample."""
    typical = min if result.get("fastest") else statistics.median
    by_size = {int(size): samples for size, samples in result["samples"][mode].items()}
    return [row(result, {name: typical(times) for name, times in by_size[size].items() if times}, size)
            for size in sorted(by_size)]


def size_text(size):
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def number(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def columns(result, every_tuning):
    """(heading, function of a row, whether it is a ratio) of each column."""
    def time(name):
        return name, lambda r: number(r["microseconds"].get(name)), False

    def library(name):
        return name, lambda r: number(r["libraries"].get(name)), False

    names = {kind: [p["name"] for p in result["programs"] if p["kind"] == kind] for kind in ("tutti", "peer", "floor")}
    found = [("size", lambda r: size_text(r["bytes"]), False)] + [time(name) for name in names["tutti"]]
    if every_tuning:
        found += [time(name) for name in names["peer"]]
    else:
        found += [library(name) for name in rows(result, next(iter(result["samples"])))[0]["libraries"]]
    found += [time(name) for name in names["floor"]]
    there = [p["name"] for p in result["programs"]] + [kind for kind in names if names[kind]]
    for mine, short in (("tutti", "tutti"), ("registered", "reg.")):
        for other, needed in (("old", "old" if mine == "tutti" else "old registered"), ("peer", "peer"),
                              ("floor", "floor")):
            if mine in there and needed in there:
                key = f"{mine}_to_{other}"
                found.append((f"{short}/{other}", lambda r, key=key: number(r[key]), True))
    if names["peer"] and not every_tuning:
        found.append(("best peer", lambda r: r["best_peer"] or "-", False))
    return found


def colour_of(text):
    """Green where Tutti is faster, red where it is slower; differences within the noise have no colour."""
    value = 1.0 if text == "-" else float(text)
    return GREEN if value < 0.97 else RED if value > 1.03 else ""


def text_table(result, mode, every_tuning=False, colours=False):
    found = columns(result, every_tuning)
    cells = [[cell(r) for _, cell, _ in found] for r in rows(result, mode)]
    widths = [max(len(heading), *(len(line[i]) for line in cells)) for i, (heading, _, _) in enumerate(found)]
    lines = ["  ".join(heading.rjust(width) for (heading, _, _), width in zip(found, widths))]
    for line in cells:
        parts = []
        for text, width, (_, _, is_ratio) in zip(line, widths, found):
            colour = colour_of(text) if colours and is_ratio else ""
            parts.append(colour + text.rjust(width) + (PLAIN if colour else ""))
        lines.append("  ".join(parts))
    return "\n".join(lines)


def markdown_table(result, mode, every_tuning=False):
    found = columns(result, every_tuning)
    lines = ["| " + " | ".join(heading for heading, _, _ in found) + " |", "|" + "---:|" * len(found)]
    lines += ["| " + " | ".join(cell(r) for _, cell, _ in found) + " |" for r in rows(result, mode)]
    return "\n".join(lines)


def heading(result):
    over = {"shm": "shared memory", "tcp": "TCP on the loopback interface",
            "hosts": f"one on each of as many network namespaces, joined at {hosts.SPEED}"}[result["transport"]]
    over += f", rows of {result['row']} operations" if result.get("row") else ""
    beside = result.get("busy", 0)
    over += f", beside {beside} busy process{'es' * (beside > 1)}" if beside else ""
    over += ", not bound to CPUs" if result.get("bound") == "no" else ""
    what = "fastest" if result.get("fastest") else "medians"
    repetitions = "1 repetition" if result["repeats"] == 1 else f"{result['repeats']} interleaved repetitions"
    picked = "" if not result.get("first_repeats") else (
        f"; peers in the tuning that was fastest in {result['first_repeats']} before")
    return f"{OPS[result['op']]}, {result['ranks']} ranks, {over}; microseconds, {what} of {repetitions}{picked}"


def limits_line(result):
    limits = [f"{name} {number(limit['value'])} {limit['unit']}" for name, limit in result["limits"].items()]
    return "this machine: " + ", ".join(limits) if limits else ""


def versions_line(result):
    libraries = dict.fromkeys(p["library"] for p in result["programs"])
    known = result.get("versions", {})
    versions = [f"{name} {known[name]}" for name in libraries if known.get(name)]
    versions += [f"old {result['against']}"] if result.get("against") else []
    return "versions: " + ", ".join(versions) if versions else ""


def report(result, every_tuning=False, markdown=False, colours=False):
    """The whole report on a result."""
    parts = [heading(result), versions_line(result), result.get("state", ""), limits_line(result)]
    for mode in result["samples"]:
        table = (markdown_table(result, mode, every_tuning) if markdown
                 else text_table(result, mode, every_tuning, colours))
        parts += ["", MODES[mode], ""] if markdown else ["", MODES[mode]]
        parts.append(table)
    if result["notes"]:
        parts += ["", *result["notes"]]
    return "\n".join(part for i, part in enumerate(parts) if part or i > 1)
