"""What tools/gpu-check found, for people: report.py RESULT.json writes Markdown to stdout.

The bars are here, so that a report can be made again from an old result. A bar is met, missed, or not measured; why is
in the steps.
"""
from __future__ import annotations

import json
import sys

# The share of the device's own copy rate that a kernel with that many inputs must reach, at 256 MiB and more.
KERNEL_BARS = {1: 0.92, 2: 0.90, 8: 0.85}
KERNEL_BYTES = 256 << 20
# An all-reduce with this many ranks and bytes must take at most that many microseconds.
SMALL_RANKS, SMALL_BYTES, SMALL_US = 8, 16 << 10, 6.0
# All-reduces of at least this many bytes, as a share of the limit given by the copy rate.
LARGE_BYTES, LARGE_SHARE = 64 << 20, 0.85
SOAK_LAUNCHES = 100_000
MARKS = {True: "met", False: "**missed**", None: "not measured"}


def sizes_text(size):
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def limit_us(ranks, size, copy_gb_s):
    """Every rank's input is read once and its output written once: 2 * ranks * size bytes at the copy rate."""
    return 2 * ranks * size / (copy_gb_s * 1e3)


def bar(name, values, holds, show):
    """Met if it holds for all available values; not measured if there are none."""
    if not values:
        return {"name": name, "met": None, "measured": ""}
    worst = [value for value in values if not holds(value)]
    return {"name": name, "met": not worst, "measured": show(values)}


def kernel_bars(result):
    rows = (result.get("kernels") or {}).get("rows", [])
    for sources, least in KERNEL_BARS.items():
        for kind in ("float", "bfloat16"):
            shares = [row["of_copy"] for row in rows
                      if row["sources"] == sources and row["type"] == kind and row["bytes"] >= KERNEL_BYTES]
            yield bar(f"{'copy' if sources == 1 else f'{sources}-input reduction'} of {kind}: at least "
                      f"{least:.0%} of the copy rate", shares, lambda share, least=least: share >= least,
                      lambda all_of_them: f"{min(all_of_them):.1%}")


def perf_rows(result):
    """(ranks, bytes, microseconds, wrong) of runs whose ranks are threads."""
    for run in result.get("perf") or []:
        if run["procs"]:
            continue
        for row in run["rows"]:
            yield run["ranks"], row["bytes"], row["us"], row["wrong"]


def perf_bars(result):
    small = [us for ranks, size, us, _ in perf_rows(result) if ranks == SMALL_RANKS and size <= SMALL_BYTES]
    yield bar(f"all-reduce of {SMALL_RANKS} ranks up to {sizes_text(SMALL_BYTES)}: at most {SMALL_US:g} us", small,
              lambda us: us <= SMALL_US, lambda times: f"{max(times):.2f} us")
    copy_rate = (result.get("kernels") or {}).get("copy_gb_s", 0)
    shares = [limit_us(ranks, size, copy_rate) / us for ranks, size, us, _ in perf_rows(result)
              if copy_rate and size >= LARGE_BYTES and us > 0]
    yield bar(f"all-reduces from {sizes_text(LARGE_BYTES)}: at least {LARGE_SHARE:.0%} of the limit", shares,
              lambda share: share >= LARGE_SHARE, lambda all_of_them: f"{min(all_of_them):.1%}")


def data_bars(result):
    kernels, soaks = result.get("kernels"), result.get("soak") or []
    yield bar("kernels give their twins' bits", [kernels] if kernels else [], lambda k: not k["wrong"] and k["compared"],
              lambda k: f"{k[0]['compared']} compared, {k[0]['wrong']} wrong")
    launches, wrong = sum(run["launches"] for run in soaks), sum(run["wrong"] for run in soaks)
    stuck = sum(run["stuck"] for run in soaks)
    enough = launches >= SOAK_LAUNCHES or wrong or stuck
    yield bar(f"{SOAK_LAUNCHES:,} operations at random: none wrong, none stuck", [(wrong, stuck)] if enough else [],
              lambda found: found == (0, 0), lambda _: f"{launches:,} done, {wrong} wrong, {stuck} stuck")
    failed = [step for step in result["steps"] if step["status"] == "failed"]
    skipped = [step for step in result["steps"] if step["status"] == "skipped"]
    yield bar("every step passes", [] if skipped and not failed else [failed], lambda steps: not steps,
              lambda steps: f"{len(steps[0])} failed")


def bars(result):
    found = [*kernel_bars(result), *perf_bars(result), *data_bars(result)]
    if result["dry"]:
        for one in found:
            one.update(met=None, measured="a dry run")
    return found


def table(titles, rows):
    lines = ["| " + " | ".join(titles) + " |", "|" + "|".join("---:" if i else "---" for i in range(len(titles))) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def perf_table(result):
    runs = result.get("perf") or []
    copy_rate = (result.get("kernels") or {}).get("copy_gb_s", 0)
    titles = ["bytes"]
    for run in runs:
        where = f" in {run['procs']} processes" if run["procs"] else ""
        titles.append(f"{run['ranks']} ranks{where}, us (of the limit)")
    rows = []
    for size in sorted({row["bytes"] for run in runs for row in run["rows"]}):
        cells = []
        for run in runs:
            us = [row["us"] for row in run["rows"] if row["bytes"] == size]
            share = f" ({limit_us(run['ranks'], size, copy_rate) / us[0]:.0%})" if us and copy_rate and us[0] > 0 else ""
            cells.append(f"{us[0]:.2f}{share}" if us else "")
        rows.append([sizes_text(size), *cells])
    return table(titles, rows)


def text(result):
    machine = result["machine"]
    head = ("A dry run: nothing in here was measured on a GPU. One that is made up, which interprets the kernels, stands in for "
            "it.\n\n" if result["dry"] else "")
    parts = [
        "# What Tutti does on a GPU\n\n" + head + f"GPU: {machine['gpu']}. Driver: {machine['driver']}. "
        f"CUDA: {machine['cuda']}. CPUs: {machine['cpus']}. Commit: {result['commit']}. Date: {result['date']}. "
        f"Time: {result['seconds']:.0f} s. Made by tools/gpu-check.",
        "## Bars\n\n" + table(["bar", "", "measured"], [[b["name"], MARKS[b["met"]], b["measured"]] for b in bars(result)]),
        "## Steps\n\n" + table(["step", "", "seconds", "why"],
                               [[s["name"], s["status"], f"{s['seconds']:.0f}", s["why"]] for s in result["steps"]]),
    ]
    if result.get("kernels"):
        rows = [[f"{r['type']}, {r['sources']} inputs", sizes_text(r["bytes"]), r["gb_s"], f"{r['of_copy']:.1%}"]
                for r in result["kernels"]["rows"]]
        parts.append(f"## Kernels\n\n`tests/gpu/gpu_kernels`. The device copies at {result['kernels']['copy_gb_s']:.0f} GB/s, reads and writes counted.\n\n"
                     + table(["kernel", "bytes", "GB/s", "of the copy rate"], rows))
    if result.get("perf"):
        parts.append("## All-reduce, sum of floats\n\n`all_reduce_perf --device cuda:0 -t RANKS` or `--procs RANKS`, out of place; the limit is 2 * ranks * "
                     "bytes at the copy rate.\n\n"
                     + perf_table(result))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(text(json.load(file)), end="")
