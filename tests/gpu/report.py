"""The report of a GPU check, from made-up results: which bars are met, missed and open, and that it says so."""
import copy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools/gpu"), str(ROOT / "tests/house")]
sys.dont_write_bytecode = True
import report  # noqa: E402
import tree  # noqa: E402

# Numbers that meet every bar; no machine measured them.
GOOD = {
    "dry": False, "commit": "0123abc", "date": "1999-12-31", "seconds": 99.5,
    "machine": {"gpu": "Made Up 1", "driver": "1.2", "cuda": "3.4", "cpus": 5},
    "steps": [{"name": "build", "status": "passed", "seconds": 12.0, "why": ""}],
    "kernels": {"compared": 9, "wrong": 0, "copy_gb_s": 1000.0,
                "rows": [{"type": kind, "sources": sources, "bytes": 256 << 20, "gb_s": 950.0, "of_copy": 0.95}
                         for kind in ("float", "bfloat16") for sources in (1, 2, 8)]},
    "perf": [{"ranks": 8, "procs": 0, "rows": [{"bytes": 8, "us": 4.0, "wrong": 0}, {"bytes": 16 << 10, "us": 5.9, "wrong": 0},
                                               {"bytes": 64 << 20, "us": 1193.0, "wrong": 0}]},
             {"ranks": 2, "procs": 2, "rows": [{"bytes": 8, "us": 40.0, "wrong": 0}]}],
    "soak": [{"ranks": 2, "procs": 1, "launches": 100_000, "wrong": 0, "stuck": 0}],
}


def marks(result):
    return [bar["met"] for bar in report.bars(result)]


def changed(change):
    result = copy.deepcopy(GOOD)
    change(result)
    return result


def wrong_about(name, change, expected):
    """Complaints if `change` does not turn exactly the bars that begin with `name` into `expected`."""
    before, after = report.bars(GOOD), report.bars(changed(change))
    differ = [b["name"] for a, b in zip(before, after) if a["met"] != b["met"]]
    right = differ and all(n.startswith(name) for n in differ)
    right = right and all(b["met"] is expected for b in after if b["name"] in differ)
    return [] if right else [f"{name}: {differ} changed, {[b['met'] for b in after]}"]


def main():
    found = [] if all(mark is True for mark in marks(GOOD)) else [f"the good result: {report.bars(GOOD)}"]
    found += wrong_about("copy of float", lambda r: r["kernels"]["rows"][0].update(of_copy=0.91), False)
    found += wrong_about("8-input reduction of bfloat16", lambda r: r["kernels"]["rows"][5].update(of_copy=0.84), False)
    found += wrong_about("8-input reduction of bfloat16", lambda r: r["kernels"]["rows"].pop(), None)
    found += wrong_about("kernels give", lambda r: r["kernels"].update(wrong=1), False)
    found += wrong_about("all-reduce of 8 ranks", lambda r: r["perf"][0]["rows"][1].update(us=6.1), False)
    found += wrong_about("all-reduces from 64M", lambda r: r["perf"][0]["rows"][2].update(us=1300.0), False)
    found += wrong_about("100,000 operations", lambda r: r["soak"][0].update(launches=99_999), None)
    found += wrong_about("100,000 operations", lambda r: r["soak"][0].update(launches=5, stuck=1), False)
    found += wrong_about("100,000 operations", lambda r: r["soak"][0].update(wrong=1), False)
    found += wrong_about("every step", lambda r: r["steps"][0].update(status="failed"), False)
    found += wrong_about("every step", lambda r: r["steps"][0].update(status="skipped"), None)
    dry = changed(lambda r: r.update(dry=True))
    if any(mark is not None for mark in marks(dry)) or "A dry run" not in report.text(dry):
        found.append("a dry run meets or misses bars, or does not say that it is one")
    empty = changed(lambda r: r.update(kernels=None, perf=None, soak=None))
    if set(marks(empty)[:-1]) != {None} or "not measured" not in report.text(empty):
        found.append("what was not measured is not open")
    written = report.text(GOOD)
    for part in ("Made Up 1", "0123abc", "1999-12-31", "| 16K | 5.90 (4%) |  |", "| 64M | 1193.00 (90%) |  |", "| 8 | 4.00 (0%) | 40.00 (0%) |",
                 "2 ranks in 2 processes"):
        if part not in written:
            found.append(f"the report does not have {part!r}:\n{written}")
    tree.finish(found, len(marks(GOOD)))


if __name__ == "__main__":
    main()
