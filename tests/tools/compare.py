"""tools/compare: its arithmetic, that its driver finds wrong results, and that it measures what it says.

compare.py BUILD_FOLDER, which has libtutti.so
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "peers"))
import build  # noqa: E402
import states  # noqa: E402
import summary  # noqa: E402

failures = []


def check(what, holds, detail=""):
    print(("ok" if holds else "FAILED"), what, "" if holds else detail)
    if not holds:
        failures.append(what)


def planted_result():
    programs = [("tutti", "tutti", "tutti"), ("registered", "tutti", "tutti"), ("openmpi", "openmpi", "peer"),
                ("openmpi ucx", "openmpi", "peer"), ("mpich", "mpich", "peer"), ("mapped", "floor", "floor"),
                ("cma", "floor", "floor"), ("bounce", "floor", "floor")]
    times = {"tutti": [9, 2, 3], "registered": [1], "openmpi": [8], "openmpi ucx": [4, 6], "mpich": [7], "mapped": [0.5],
             "cma": [2], "bounce": [1.5]}
    later = {name: [10.0] for name in times} | {"mpich": []}  # it failed there
    return {"op": "all_reduce", "ranks": 2, "cpus": 2, "transport": "shm", "repeats": 3, "limits": {}, "notes": ["a note"],
            "programs": [{"name": n, "library": lib, "kind": kind} for n, lib, kind in programs],
            "samples": {"fresh": {"4096": times, "8": later}},
            "batches": [{"mode": "fresh", "bytes": size, "program": name, "us": us, "exchange_us": [0, 0]}
                        for size, of in ((4096, times), (8, later)) for name, all_us in of.items() for us in all_us]}


def test_states():
    def batch(before, after, us):
        return {"us": us, "exchange_us": [before, after]}

    near = [batch(0.04 + i / 1000, 0.04, i) for i in range(7)]
    far = [batch(0.13, 0.12 + i / 500, 100 + i) for i in range(20)]
    changing = [batch(0.04, 0.13, 1000)]
    check("what was timed in the commoner state counts", states.select(near + changing + far, "most")[0] == far)
    check("or in the one that is wanted", states.select(near + changing + far, "near")[0] == near)
    check("or all", states.select(near + changing + far, "any")[0] == near + changing + far)
    kept, said = states.select(near + changing + far, "most")
    check("how many count is told", "20 of 28" in said, said)
    check("noise is no state", states.select(far, "most") == (far, ""))
    check("a straggler is no state", len(states.select(far + [batch(3, 0.12, 5)], "most")[0]) >= 20)
    check("a state that never was", states.select(far, "near")[0] == far)


def test_summary():
    result = planted_result()
    small, large = summary.rows(result, "fresh")
    check("rows are in the order of sizes", (small["bytes"], large["bytes"]) == (8, 4096))
    check("times are medians", large["microseconds"]["tutti"] == 3 and large["microseconds"]["openmpi ucx"] == 5)
    check("a library is as fast as its best tuning", large["libraries"] == {"openmpi": 5, "mpich": 7}, large["libraries"])
    check("the best peer is named", large["best_peer"] == "openmpi ucx")
    check("ratios to the best peer", (large["tutti_to_peer"], large["registered_to_peer"]) == (3 / 5, 1 / 5))
    check("floors by the kind of buffer", (large["tutti_to_floor"], large["registered_to_floor"]) == (3 / 1.5, 1 / 0.5))
    check("a program without times is left out", "mpich" not in small["microseconds"])
    fastest = summary.rows({**result, "fastest": True}, "fresh")[1]
    check("the fastest on request", fastest["microseconds"]["tutti"] == 2 and fastest["tutti_to_peer"] == 2 / 4)
    table = summary.text_table(result, "fresh").splitlines()
    check("columns are aligned", len({len(line) for line in table}) == 1, table)
    check("an absent time is a dash", table[1].split()[4] == "-", table[1])
    check("plain without a terminal", "\033" not in summary.report(result))
    check("colours on a terminal", summary.GREEN in summary.report(result, colours=True))
    check("notes are told", "a note" in summary.report(result))
    markdown = summary.markdown_table(result, "fresh").splitlines()
    check("Markdown has as many columns everywhere", len({line.count("|") for line in markdown}) == 1, markdown)
    check("bus bandwidth", (summary.bus_factor("all_reduce", 4), summary.bus_factor("all_gather", 4)) == (1.5, 0.75))


def test_shared_cpus(scratch):
    planted = planted_result()
    for batch, exchange_us in zip(planted["batches"], (0.04, 9.0, 9.0, 9.0) * 5):
        batch["exchange_us"] = [exchange_us, exchange_us]
    source, shown = scratch / "planted.json", scratch / "shown.json"
    for ranks, all_count in ((2, False), (3, True)):
        source.write_text(json.dumps({**planted, "ranks": ranks}), encoding="utf-8")
        run([ROOT / "tools/compare", "--from", source, "--json", shown])
        samples = json.loads(shown.read_text(encoding="utf-8"))["samples"]["fresh"]
        count = sum(len(times) for by_program in samples.values() for times in by_program.values())
        check(f"{ranks} ranks on 2 CPUs", (count == len(planted["batches"])) == all_count, count)


def run(command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    what = " ".join(pathlib.Path(str(word)).name for word in command[:8])
    check(f"{what} ends with {status}", done.returncode == status, done.stdout + done.stderr)
    return done


def test_driver(scratch):
    """The driver finds what is wrong, in both modes, and says so."""
    program = scratch / "wrong"
    sources = [ROOT / "tests/tools/compare_wrong.cpp", *(ROOT / "tools/peers" / name for name in build.DRIVER)]
    compiler = os.environ.get("CXX", "c++").split()
    run([*compiler, "-std=c++20", "-O1", *sources, "-o", program])
    cases = [("right", "both", 0), ("last", "reused", 1), ("last", "fresh", 1), ("stale", "fresh", 1)]
    for number, (fault, mode, status) in enumerate(cases):
        done = run([program, "--variant", fault, "--modes", mode, "--ranks", "1", "--seconds", "0.001", "--sizes", "4,4096",
                    "--meet", scratch / f"meet{number}"], status)
        check(f"{fault}, {mode}: said", (status == 0) == ("wrong" not in done.stderr), done.stderr)
    done = run([program, "--sizes", "6", "--meet", scratch / "meet"], 1)
    check("a size that is no whole floats is named", "'6'" in done.stderr, done.stderr)


def compare(folder, scratch, *arguments, status=0):
    """The rows of one run."""
    result = scratch / "result.json"
    result.unlink(missing_ok=True)
    run([ROOT / "tools/compare", "--json", result, "--build", folder, "--no-install", "--repeats", "2", "--seconds", "0.003",
         *arguments], status)
    return json.loads(result.read_text(encoding="utf-8")) if result.exists() else None


def test_compare(folder, scratch):
    """Tutti and the floors, which need no peer; whatever they print is checked by them."""
    runs = [("all_reduce", "2", "shm", {"mapped", "cma", "bounce"}), ("all_reduce", "3", "tcp", {"sockets"}),
            ("broadcast", "3", "shm", {"mapped", "cma", "bounce"}), ("all_gather", "3", "shm", {"mapped", "cma", "bounce"}),
            ("reduce_scatter", "2", "tcp", {"sockets"})]
    for op, ranks, transport, floors in runs:
        result = compare(folder, scratch, "--only", "tutti,floor", "--op", op, "--ranks", ranks, "--transport", transport,
                         "--sizes", "8,20000,300K", "--registered", "--cpus", "any")
        if result is None:
            continue
        # Some systems let no process read another's memory.
        wanted = {"tutti", "registered"} | {floor for floor in floors if not any(floor in note for note in result["notes"])}
        for mode in ("reused", "fresh"):
            rows = result["rows"][mode]
            unit = 4 * int(ranks) if op in ("all_gather", "reduce_scatter") else 4
            check(f"{op}, {mode}: three sizes of whole blocks", len(rows) == 3 and not any(r["bytes"] % unit for r in rows))
            check(f"{op}, {mode}: all were timed", all(set(r["microseconds"]) == wanted for r in rows), rows)
            check(f"{op}, {mode}: no time is 0", all(t > 0 for r in rows for t in r["microseconds"].values()), rows)
            samples = [len(times) for r in result["samples"][mode].values() for times in r.values() if times]
            check(f"{op}, {mode}: three batches in each repetition", set(samples) == {6}, samples)
        check(f"{op}: limits were measured", len(result["limits"]) == 6, result["limits"])


def test_plot(scratch):
    pythons = [sys.executable, "/usr/bin/python3"]
    if all(subprocess.run([p, "-c", "import matplotlib"], capture_output=True, check=False).returncode for p in pythons):
        print("no matplotlib: plots were not tested")
        return
    source = scratch / "planted.json"
    source.write_text(json.dumps(planted_result()), encoding="utf-8")
    run([ROOT / "tools/compare", "--from", source, "--plot", scratch / "plot"])
    check("SVG and PNG", b"<svg" in (scratch / "plot.svg").read_bytes()
          and (scratch / "plot.png").read_bytes().startswith(b"\x89PNG"))


def main():
    if shutil.which((os.environ.get("CXX", "c++")).split()[0]) is None:
        print("skipped: there is no C++ compiler to build the programs with")
        sys.exit(77)
    folder = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        test_states()
        test_summary()
        test_shared_cpus(scratch)
        test_driver(scratch)
        test_compare(folder, scratch)
        test_plot(scratch)
        wrong = compare(folder, scratch, "--only", "nobody", status=2)
        check("an unknown library is refused", wrong is None)
    print(f"{len(failures)} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
