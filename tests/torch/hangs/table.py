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
# Parts without information about the cause: paths of gloo's sources, its hints, how torch passes an exception on.
_NOISE = re.compile(
    r"\[/__w\S*\] |\. This is typically caused by.*|(RuntimeError: )?Got the following error when running the callback: |"
    r"; all ranks of a communicator must call.*|\(host \S+ pid \d+\) |\(host \S+, pid \d+\) |tutti\[\d+\] (rank \d+ )?| \[oneshot\]| \[direct\]|"
    r"tests/torch/hangs/|(?<=one\.) This error indicates.*"
)


def _sentence(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return _NOISE.sub("", first).replace("|", "\\|").strip()


def _cell(report: runner.Report) -> str:
    """What the survivors say, the first line of the log first."""
    situation, parts = report.situation, []
    for seconds, rank, line in report.log:
        if ("utti" in line and ("warn:" in line or "failed" in line)) or "did not join the group" in line:
            parts.append(f"rank {rank} logs after {seconds:.1f} s: {_sentence(line)}")
            if not situation.goes_on or "goes on" in line:
                break
    told = set()
    for rank, outcome in enumerate(report.ranks):
        if rank in (*situation.stuck, *situation.dies) or (situation.body.__name__ == "exception" and rank == 1):
            continue
        if outcome.how == "error":
            if (error := outcome.text.split(":")[0]) in told:
                continue
            if parts and "no progress" in outcome.text:
                parts.append(f"rank {rank} has an error with the same sentence after {outcome.seconds:.1f} s")
            else:
                parts.append(f"rank {rank} after {outcome.seconds:.1f} s: {_sentence(outcome.text)}")
            told.add(error)
        elif outcome.how == "died":
            parts.append(f"rank {rank}'s process dies")
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
