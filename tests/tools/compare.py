"""tools/compare: its arithmetic, that its driver finds wrong results, and that it measures what it says.

compare.py BUILD_FOLDER, which has libtutti.so
"""
import argparse
import concurrent.futures
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "peers"))
import build  # noqa: E402
import busy  # noqa: E402
import programs  # noqa: E402
import states  # noqa: E402
import summary  # noqa: E402

GENEROUS_SECONDS = 60

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
    later = {name: [10.0] for name in times} | {"mpich": []}  # it failed in the second batch
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
    kept, said = states.select(far, "near")
    check("a state that never was", kept == far and "--cpus near chose nothing" in said)


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


def test_headings():
    planted = {**planted_result(), "versions": {"mpich": "5.0", "gloo": "1"}}
    old = {"name": "old", "library": "tutti", "kind": "tutti"}
    planted["programs"].insert(1, old)
    planted["samples"]["fresh"]["4096"]["old"] = [6]
    check("an old build is a column, and there is a ratio",
          summary.text_table(planted, "fresh").splitlines()[0].split()[1:6] == ["tutti", "old", "registered", "openmpi", "mpich"]
          and summary.rows(planted, "fresh")[1]["tutti_to_old"] == 3 / 6)
    said = summary.report({**planted, "row": 20, "busy": 2, "bound": "no", "against": "/before/libtutti.so"})
    check("rows and busy processes are in the heading",
          "rows of 20 operations" in said and "beside 2 busy processes, not bound" in said, said)
    check("versions of what was measured", "versions: mpich 5.0, old /before/libtutti.so" in said, said)
    said = summary.report(planted_result())
    check("and nothing of that without them", "rows of" not in said and "beside" not in said and "old" not in said, said)
    check("bus bandwidth of a reduce", (summary.bus_factor("reduce", 4), summary.bus_factor("all_to_all", 4)) == (1, 0.75))


def test_shared_cpus(scratch):
    planted = planted_result()
    for batch, exchange_us in zip(planted["batches"], (0.04, 9.0, 9.0, 9.0) * 5):
        batch["exchange_us"] = [exchange_us, exchange_us]
    source, shown = scratch / "planted.json", scratch / "shown.json"
    for ranks, all_count in ((2, False), (3, True), (2, True)):
        beside = {"busy": 1} if all_count and ranks == 2 else {}
        source.write_text(json.dumps({**planted, "ranks": ranks, **beside}), encoding="utf-8")
        run([ROOT / "tools/compare", "--from", source, "--json", shown])
        samples = json.loads(shown.read_text(encoding="utf-8"))["samples"]["fresh"]
        count = sum(len(times) for by_program in samples.values() for times in by_program.values())
        check(f"{ranks} ranks on 2 CPUs {beside}", (count == len(planted["batches"])) == all_count, count)


def test_kept(scratch):
    """Measurements that took minutes are not lost if something fails afterwards."""
    planted = planted_result()
    for batch, before in zip(planted["batches"], (0.04, 9.0, 9.0, 9.0) * 5):
        batch["exchange_us"] = [before, 9.0]
    source, kept = scratch / "planted.json", scratch / "kept.json"
    source.write_text(json.dumps(planted), encoding="utf-8")
    shown = [ROOT / "tools/compare", "--from", source]
    done = run([*shown, "--cpus", "near", "--json", kept], 1)
    check("CPUs that never were near are told of", "the CPUs were never near" in done.stderr, done.stderr)
    check("and all batches kept", kept.exists() and len(json.loads(kept.read_text())["batches"]) == len(planted["batches"]))
    done = run([*shown, "--plot", scratch / "nowhere" / "plot"], 1)
    check("a plot that fails comes after the table", "a note" in done.stdout, done.stdout)
    done = run([*shown, "--json", scratch / "nowhere" / "result"], 2)
    check("a file that cannot be is refused by name", "nowhere/result cannot be written" in done.stderr, done.stderr)


def load_tool():
    """tools/compare as a module."""
    loader = importlib.machinery.SourceFileLoader("compare_tool", str(ROOT / "tools/compare"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def chosen_options(**changes):
    values = {"op": "all_reduce", "ranks": 2, "hosts": 0, "network": "net", "transport": "shm", "registered": False, "quick": False, "busy": 0, "row": 0, "bound": "no",
              "against": None, "tutti": pathlib.Path("/new/libtutti.so"), "only": None, "plot": None, "no_install": True,
              "build": None, "no_limits": False, "modes": "reused", "seconds": 0.003, "sizes": [8], "warm_up": 2, "repeats": 2}
    return argparse.Namespace(**{**values, **changes})


def test_programs():
    """Which programs are chosen, without running any."""
    def names(**changes):
        return [p.name for p in programs.programs_for(chosen_options(**changes), programs.LIBRARIES)]

    for transport in ("shm", "tcp"):
        found = names(transport=transport)
        check(f"{transport}: no name twice", len(found) == len(set(found)), found)
        check(f"{transport}: every peer without a tuning", set(programs.LIBRARIES) - set(found) == {"floor", "torch"}, found)
        check(f"{transport}: a peer has tunings", {"openmpi5 ring", "mpich5 doubling", "impi ring"} <= set(found), found)
        quick = names(transport=transport, quick=True)
        check(f"{transport}: --quick has none", not any(" " in name for name in quick), quick)
        found = names(transport=transport, op="broadcast")
        check(f"{transport}: tunings of all-reduce are for all-reduce", "openmpi5 segments" not in found, found)
    build.python_with_torch = lambda: "python"
    on_hosts = programs.programs_for(chosen_options(hosts=3, ranks=3, transport="hosts"), programs.LIBRARIES)
    check("hosts: every peer", set(programs.LIBRARIES) == {p.library for p in on_hosts}, on_hosts)
    there = [p.name for p in on_hosts if "net" not in p.arguments and "net-1,net-2,net-3" not in p.launcher]
    check("hosts: all of them on hosts", there == [], there)
    check("Gloo has no reduce-scatter", "gloo" not in names(op="reduce_scatter"))
    check("old programs beside new ones", names(registered=True, against="/old")[:4]
          == ["tutti", "old", "registered", "old registered"])
    check("peers may yield to busy processes", {"openmpi5 yield", "impi yield"} <= set(names(busy=1)))


def test_missing(tool, scratch):
    """A missing peer is reported, and not measured."""
    peers, build.PEERS = build.PEERS, scratch / "no peers"
    notes = []
    wheels = list(build.WHEELS)
    _, there = tool.prepare(chosen_options(only=wheels, tutti=scratch / "libtutti.so"), notes)
    check("no peer, no program", there == [], there)
    check("and a note of each", [note.split(":")[0] for note in notes] == [f"without {name}" for name in wheels], notes)
    check("no version either", not set(wheels) & set(build.versions()))
    build.PEERS = peers

    many = len(os.sched_getaffinity(0)) + 1
    for only, ranks, left_out in ((None, 1, False), (None, many, True), (["mpich"], many, False)):
        notes = []
        found = tool.choose(chosen_options(only=only, ranks=ranks), notes)
        check(f"{ranks} ranks, --only {only}: what spins is left out: {left_out}",
              ("mpich" not in found) == left_out and bool(notes) == left_out, (found, notes))


def test_failing(tool, folder):
    """A peer that fails or hangs is left out from then on, with a note; the others are measured."""
    def program(name, *launcher):
        return programs.Program(name, "floor", "peer", launcher, ("--variant", "bounce"))

    limit, tool.LIMIT_SECONDS = tool.LIMIT_SECONDS, 3
    chosen = [program("works"), program("fails", "sh", "-c", "echo ------ >&2; echo no >&2; exit 3"), program("absent", "/nowhere/mpirun"),
              program("hangs", "sh", "-c", "sleep 1000; true")]
    notes = []
    options = chosen_options()
    batches = tool.measure(options, folder / "compare", [(p, options.sizes) for p in chosen], notes, options.repeats)
    tool.LIMIT_SECONDS = limit
    check("what works was measured in each repetition", [b["program"] for b in batches] == ["works"] * 6, batches)
    check("each failure is told once", sorted(note.split(":")[0] for note in notes) == ["absent", "fails", "hangs"], notes)
    check("and what it was", any("exited with status 3: no" in note for note in notes)
          and any("took more than 3 s" in note for note in notes), notes)


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children_of(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []  # it has ended meanwhile


def busy_children(pid):
    """The busy processes that a process has started."""
    wanted = "\0".join(busy.COMMAND) + "\0"
    found = []
    for child in children_of(pid):
        try:
            if pathlib.Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8") == wanted:
                found.append(child)
        except OSError:
            continue  # it has ended meanwhile
    return found


def wait_until(what, holds):
    end = time.monotonic() + GENEROUS_SECONDS
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    check(what, holds(), f"not within {GENEROUS_SECONDS} s")


def obey_signals():
    """A shell, or nohup, may have started this script with the signals ignored."""
    for sign in (signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, signal.SIG_DFL)


def test_busy(folder):
    """Busy processes run during a measurement; whatever ends the tool ends them, and the measured program, too."""
    script = "import busy, time\nwith busy.busy(2):\n    time.sleep(1000)"
    tool = [str(ROOT / "tools/compare"), "--build", str(folder), "--no-install", "--only", "floor", "--busy", "2",
            "--seconds", "1000", "--sizes", "8"]
    ends = [(tool, sign) for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    for command, sign in (*ends, ([sys.executable, "-c", script], signal.SIGKILL)):
        process = subprocess.Popen(command, cwd=ROOT / "tools/peers", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   preexec_fn=obey_signals)
        wait_until("two processes are busy", lambda: len(busy_children(process.pid)) == 2)
        if command == tool:
            wait_until("and ranks are measured", lambda: any(children_of(child) for child in children_of(process.pid)))
        children = children_of(process.pid)
        process.send_signal(sign)
        process.wait(GENEROUS_SECONDS)
        wait_until(f"{sign.name} ends them", lambda: not any(is_running(child) for child in children))
    try:
        with busy.busy(1) as (process,):
            check("a busy process runs", is_running(process.pid))
            raise ValueError
    except ValueError:
        check("an error ends it", process.returncode is not None)


def run(command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    what = " ".join(pathlib.Path(str(word)).name for word in command[:8])
    check(f"{what} ends with {status}", done.returncode == status, done.stdout + done.stderr)
    return done


def test_driver(scratch):
    """The driver finds wrong results in both modes, and reports them."""
    program = scratch / "wrong"
    sources = [ROOT / "tests/tools/compare_wrong.cpp", *(ROOT / "tools/peers" / name for name in build.DRIVER)]
    compiler = os.environ.get("CXX", "c++").split()
    run([*compiler, "-std=c++20", "-O1", *sources, "-o", program])
    cases = [("right", "both", 0), ("last", "reused", 1), ("last", "fresh", 1), ("stale", "fresh", 1)]
    for number, (fault, mode, status) in enumerate(cases):
        done = run([program, "--variant", fault, "--modes", mode, "--ranks", "1", "--seconds", "0.001", "--sizes", "4,4096",
                    "--meet", scratch / f"meet{number}"], status)
        check(f"{fault}, {mode}: said", (status == 0) == ("wrong" not in done.stderr), done.stderr)
    done = run([program, "--variant", "right", "--ranks", "1", "--seconds", "0.001", "--sizes", "4", "--row", "7", "--modes",
                "both", "--warm-up", "9", "--meet", scratch / "rows"])
    lines = [line.split() for line in done.stdout.splitlines()]
    check("--row: batches of so many operations", {line[2] for line in lines} == {"7"}, done.stdout)
    counts = [sum(line[0] == mode for line in lines) for mode in ("reused", "fresh")]
    check("--row: 3 to 30 of them", all(3 <= count <= 30 for count in counts), counts)
    done = run([program, "--sizes", "6", "--meet", scratch / "meet"], 1)
    check("a size that is no whole floats is named", "'6'" in done.stderr, done.stderr)


def compare(folder, scratch, *arguments):
    """The result of one run."""
    result = scratch / "result.json"
    result.unlink(missing_ok=True)
    compare_output(folder, *arguments, "--json", result)
    return json.loads(result.read_text(encoding="utf-8")) if result.exists() else None


def compare_output(folder, *arguments, status=0):
    return run([ROOT / "tools/compare", "--build", folder, "--no-install", "--repeats", "1", "--seconds", "0.003",
         "--warm-up", "2", *arguments], status)


def test_contenders(tool):
    """--confirm: each peer only in the tuning that was fastest for a size, everything else everywhere."""
    planted = planted_result()
    for batch in planted["batches"]:
        if (batch["program"], batch["bytes"]) == ("openmpi", 8):
            batch["us"] = 9.0
    found = tool.contenders(planted, "any")
    check("of two tunings the fastest of each size", (found["openmpi"], found["openmpi ucx"]) == ([8], [4096]), found)
    check("a peer that failed at a size is left out there", found["mpich"] == [4096], found)
    check("no other program is left out anywhere",
          all(found[name] == [8, 4096] for name in ("tutti", "registered", "mapped", "cma", "bounce")), found)
    said = summary.report({**planted, "first_repeats": 3, "repeats": 9})
    check("the heading says how tunings were picked",
          "9 interleaved repetitions; peers in the tuning that was fastest in 3 before" in said, said)


def test_unreadable(scratch):
    """A result that is not there, or is none, is an error that names it."""
    (scratch / "odd.json").write_text("odd", encoding="utf-8")
    for name in ("missing.json", "odd.json"):
        said = run([ROOT / "tools/compare", "--from", scratch / name], 1).stderr
        check(f"{name} is named", said.startswith(f"--from {scratch / name} cannot be read") and said.count("\n") == 1, said)


def test_confirmed(folder, scratch):
    result = compare(folder, scratch, "--only", "tutti,floor", "--sizes", "8", "--reused", "--no-limits", "--confirm", "2",
                     "--cpus", "any")
    samples = result["samples"]["reused"]["8"]
    check("only the later repetitions are shown", {len(times) for times in samples.values()} == {6}, samples)
    first = {batch["program"] for batch in result["first_batches"]}
    check("and the first are kept", first == set(samples) and result["first_repeats"] == 1, first)


def test_compare(folder, scratch):
    """Tutti and the floors, which need no peer; the tool checks whatever they print."""
    memory = {"mapped", "cma", "bounce"}
    runs = [("all_reduce", "2", "shm", memory, "2"), ("all_reduce", "3", "tcp", {"sockets"}, "1"),
            ("broadcast", "3", "shm", memory, "1"), ("all_gather", "3", "shm", memory, "1"),
            ("reduce_scatter", "2", "tcp", {"sockets"}, "1"), ("reduce", "3", "shm", memory, "1"),
            ("reduce", "3", "tcp", {"sockets"}, "1"), ("all_to_all", "3", "shm", memory, "1"),
            ("all_to_all", "3", "tcp", {"sockets"}, "1")]
    # The hardware behaves the same for all of them.
    for op, ranks, transport, floors, repeats in runs:
        result = compare(folder, scratch, "--only", "tutti,floor", "--op", op, "--ranks", ranks, "--transport", transport,
                         "--sizes", "8,20000,300K", "--registered", "--cpus", "any", "--repeats", repeats,
                         *([] if op == "all_reduce" else ["--no-limits"]))
        if result is None:
            continue
        # Some systems do not let a process read another's memory.
        wanted = {"tutti", "registered"} | {floor for floor in floors if not any(floor in note for note in result["notes"])}
        for mode in ("reused", "fresh"):
            rows = result["rows"][mode]
            unit = 4 * int(ranks) if op in ("all_gather", "reduce_scatter", "all_to_all") else 4
            check(f"{op}, {mode}: three sizes of whole blocks", len(rows) == 3 and not any(r["bytes"] % unit for r in rows))
            check(f"{op}, {mode}: all were timed", all(set(r["microseconds"]) == wanted for r in rows), rows)
            check(f"{op}, {mode}: no time is 0", all(t > 0 for r in rows for t in r["microseconds"].values()), rows)
            samples = [len(times) for r in result["samples"][mode].values() for times in r.values() if times]
            check(f"{op}, {mode}: three batches in each repetition", set(samples) == {3 * int(repeats)}, samples)
        wanted = 6 if op == "all_reduce" else 0
        check(f"{op}: {wanted} limits were measured", len(result["limits"]) == wanted, result["limits"])


def test_hosts(folder, scratch):
    """Whatever ends the tool, no namespace is left."""
    def namespaces():
        return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout

    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        print("skipped: --hosts: no root, ip or tc")
        return
    result = compare(folder, scratch, "--only", "tutti,floor", "--hosts", "3", "--sizes", "8,20000", "--reused")
    rows = result["rows"]["reused"] if result else []
    check("3 hosts: all were timed", [set(r["microseconds"]) for r in rows] == [{"tutti", "sockets"}] * 2, rows)
    check("and no namespace is left", "compare-" not in namespaces(), namespaces())


def test_against(folder, scratch):
    """An old build is measured, and no other one under its name."""
    old = scratch / "libold.so"
    shutil.copy(folder / "libtutti.so", old)
    arguments = ("--only", "tutti", "--sizes", "8", "--registered", "--cpus", "any", "--reused", "--row", "20")
    result = compare(folder, scratch, *arguments, "--against", old)
    row = result["rows"]["reused"][0] if result else {"microseconds": {}}
    check("old and new are timed", set(row["microseconds"]) == {"tutti", "old", "registered", "old registered"}, row)
    times = row["microseconds"]
    check("and compared", "old" in times and row["tutti_to_old"] == times["tutti"] / times["old"], row)
    check("what was old is told", result and result["against"] == str(old))
    maps = pathlib.Path("/proc/self/maps").read_text(encoding="ascii").split()
    other = next(word for word in maps if word.startswith("/") and "/libc" in word)
    done = compare_output(folder, *arguments, "--against", other, status=1)
    check("what is no libtutti is not measured", "would measure" in done.stderr and other in done.stderr, done.stderr)
    for wrong in (("--against", scratch / "nothing"), ("--only", "nobody"), ("--busy", "-1"), ("--ranks", "65"), ("--ranks", "1"),
                  ("--sizes", "0K")):
        done = compare_output(folder, *wrong, status=2)
        check(f"{wrong[0]} {wrong[1]} is refused by name", str(wrong[1]) in done.stderr, done.stderr)


def test_plot(scratch):
    pythons = [sys.executable, "/usr/bin/python3"]
    if all(subprocess.run([p, "-c", "import matplotlib"], capture_output=True, check=False).returncode for p in pythons):
        print("skipped: plots: no matplotlib")
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
    folder = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        test_states()
        test_summary()
        test_headings()
        test_programs()
        test_shared_cpus(scratch)
        test_kept(scratch)
        tool = load_tool()
        test_contenders(tool)
        test_missing(tool, scratch)
        test_unreadable(scratch)
        with concurrent.futures.ThreadPoolExecutor() as builders:
            waiting = [builders.submit(build.build, library, folder) for library in ("tutti", "floor")]
            test_driver(scratch)
        for built in waiting:
            built.result()
        test_failing(tool, folder)
        test_busy(folder)
        test_compare(folder, scratch)
        test_confirmed(folder, scratch)
        test_hosts(folder, scratch)
        test_against(folder, scratch)
        test_plot(scratch)
    print(f"{len(failures)} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
