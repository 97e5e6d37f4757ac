"""Prints what gloo and Tutti say in each situation, and after how long, as a table.

    tests/torch/run.sh build/libtutti.so.0 tests/torch/hangs/table.py [NAME...]"""
from __future__ import annotations

import re
import sys

import prerequisites

prerequisites.require()
import tutti_torch  # noqa: F401  # before anything forks

from hangs import runner
from hangs.situations import SITUATIONS

TIMEOUT_S, LIMIT_S = 6.0, 20.0
_NOISE = re.compile(r"Exception raised from|frame #|\[rank\d+\]:\[W|Warning")


def _sentence(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return first.replace("|", "\\|").strip()


def _cell(report: runner.Report) -> str:
    parts = []
    lines = [(s, r, line) for s, r, line in report.log if "utti" in line and not _NOISE.search(line)]
    for seconds, rank, line in lines[:2]:
        parts.append(f"log of rank {rank} after {seconds:.1f} s: {_sentence(line)}")
    for rank, outcome in enumerate(report.ranks):
        if rank in (*report.situation.stuck, *report.situation.dies):
            continue
        if outcome.how == "error":
            parts.append(f"rank {rank} after {outcome.seconds:.1f} s: {_sentence(outcome.text)}")
        elif outcome.how == "died":
            parts.append(f"rank {rank} dies")
        elif outcome.how == "hangs":
            parts.append(f"rank {rank} hangs (ended after {LIMIT_S:g} s)")
        else:
            parts.append(f"rank {rank} ends well after {outcome.seconds:.1f} s")
    return "<br>".join(parts)


def main() -> None:
    names = sys.argv[1:] or list(SITUATIONS)
    told = {backend: runner.run(names, backend, TIMEOUT_S, LIMIT_S) for backend in ("gloo", "tutti")}
    print("| situation | gloo | Tutti |\n|---|---|---|")
    for name in names:
        print(f"| {SITUATIONS[name].name} | {_cell(told['gloo'][name])} | {_cell(told['tutti'][name])} |")


if __name__ == "__main__":
    main()
