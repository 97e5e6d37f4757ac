"""tutti-trace on a job of three ranks, of which one is stopped: tutti_trace.py TUTTI_TRACE LIBTUTTI

The commands that look at a live job, those that look at one that was killed, and the files that are made of it.
"""
import ctypes
import html.parser
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS, FLOAT32, SUM = 3, 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def be_rank(path, rank, unique_id):
    library = ctypes.CDLL(path)
    comm, value = ctypes.c_void_p(), ctypes.c_float(1)
    library.tuttiCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    assert library.tuttiCommInitRank(ctypes.byref(comm), RANKS, unique_id, rank) == 0

    def sum_up():
        at = ctypes.byref(value)
        assert library.tuttiAllReduce(at, at, ctypes.c_size_t(1), FLOAT32, SUM, comm, None) == 0

    for _ in range(20):
        sum_up()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    sum_up()
    os._exit(0)


def start(path):
    """The ranks, and the process where they meet."""
    read, write = os.pipe()
    root = os.fork()
    if root == 0:
        unique_id = UniqueId()
        assert ctypes.CDLL(path).tuttiGetUniqueId(ctypes.byref(unique_id)) == 0
        os.write(write, bytes(unique_id))
        signal.pause()
    unique_id = UniqueId.from_buffer_copy(os.read(read, 128))
    pids = []
    for rank in range(RANKS):
        pids.append(os.fork())
        if pids[-1] == 0:
            be_rank(path, rank, unique_id)
    return pids, root


class Page(html.parser.HTMLParser):
    """The page's script and the tags that are open at its end."""

    def __init__(self):
        super().__init__()
        self.script, self.inside = "", False

    def handle_starttag(self, tag, attributes):
        self.inside = tag == "script"
        assert not dict(attributes).get("src") and not dict(attributes).get("href"), "the page needs another file"

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.script += data


# A browser in which every object exists and nothing is drawn: all numbers are 0, except the canvas's width.
BROWSER = """
const listeners = {};
const any = new Proxy(function () {}, {
  get: (_, key) => key === Symbol.toPrimitive ? () => 0 : key === "clientWidth" ? 1200 :
    key === "addEventListener" ? (name, listener) => { listeners[name] = listener; } : any,
  apply: () => any, set: () => true });
globalThis.document = globalThis.window = any;
globalThis.getComputedStyle = globalThis.matchMedia = () => any;
"""
# Zooms in as far as the wheel goes, at several places of the picture.
ZOOM = """
for (let clientX = 100; clientX < 1200; clientX += 50) {
  listeners.dblclick();
  for (let i = 0; i < 250; i++) listeners.wheel({ preventDefault() {}, clientX, deltaY: -1 });
}
"""
# 130 ranks, each with as many operations as a recorder keeps.
MANY = """
const many = data => {
  const rank = { ...data.ranks[0], events: Array(1024).fill(data.ranks[0].events[0]) };
  return { ...data, ranks: Array(130).fill(rank) };
};
"""


def run_page(script, data):
    """Runs the script as a browser would, if node is installed."""
    if shutil.which("node") is None:
        print("the page's script was not run: there is no node")
        return
    for done in (script + ZOOM, MANY + script.replace(data, f"many({data})")):
        subprocess.run(["node"], input=BROWSER + done, check=True, text=True, timeout=60)


def late_rows(table):
    return [line.split() for line in table.splitlines()[2:2 + RANKS]]


def check_quick_rank(run, dump, folder):
    """A rank that began its last operation after the time of the dump."""
    trace = json.loads(Path(dump).read_text())
    last = trace["entries"][-1]
    assert last["time_discovered_completed_ns"] is None, last
    trace["tutti"]["written_ns"] = last["time_discovered_started_ns"] - 5000
    Path(folder, "quick.json").write_text(json.dumps(trace))
    merged = run("merge", f"{folder}/quick.json", "-o", f"{folder}/quick_all").split()
    lengths = [event["dur"] for event in json.loads(Path(merged[0]).read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(lengths) == 21 and min(lengths) >= 0, lengths


def check_alike_named(run, dump, folder):
    """A rank that is late by 5 ms, on another machine of the same name, whose clock is one second behind."""
    for rank, machine, came, behind in ((0, 10, 0, 0), (1, 11, 5_000_000, 1_000_000_000)):
        trace = json.loads(Path(dump).read_text())
        trace["tutti"].update(rank=rank, machine=machine)
        for i, entry in enumerate(trace["entries"][:20]):
            begin = trace["tutti"]["written_ns"] + i * 10_000_000 - behind
            entry["time_discovered_started_ns"] = begin + came
            entry["time_discovered_completed_ns"] = begin + 6_000_000
        Path(folder, f"alike{rank}.json").write_text(json.dumps(trace))
    late = run("late", f"{folder}/alike0.json", f"{folder}/alike1.json")
    assert "rank 1 came last to" in late, late


def check_files(run, folder):
    dumps = run("dump", "-o", f"{folder}/trace-%r.json").split()
    assert len(dumps) == RANKS, dumps
    merged = [Path(name) for name in run("merge", *dumps, "-o", f"{folder}/all").split()]
    events = json.loads(merged[0].read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 21 * RANKS - 1, len(slices)
    assert sorted(e["args"]["state"] for e in slices).count("under way") == RANKS - 1
    assert {event["pid"] for event in slices} == set(range(RANKS))
    page = Page()
    page.feed(merged[1].read_text())
    begin = page.script.index("const data = ") + len("const data = ")
    data, end = json.JSONDecoder().raw_decode(page.script[begin:])
    run_page(page.script, page.script[begin:][:end])
    assert [len(rank["events"]) for rank in data["ranks"]] == [21, 21, 20], "the page lacks operations"
    assert [late["operations"] for late in data["late"]] == [20] * RANKS
    assert [row[:2] for row in late_rows(run("late", *dumps))] == [[str(rank), "20"] for rank in range(RANKS)]
    check_quick_rank(run, dumps[0], folder)
    check_alike_named(run, dumps[0], folder)
    for twice in (["torch", dumps[0], dumps[0], "-o", f"{folder}/twice_"], ["dump", "-o", f"{folder}/one.json"]):
        refused = subprocess.run([run.tool, *twice], capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1 and "rank" in refused.stderr, refused
    both = subprocess.run([run.tool, "late", "--pid", "1", dumps[0]], capture_output=True, text=True, timeout=60)
    assert both.returncode == 2 and "leave out one" in both.stderr, both
    pickles = run("torch", *dumps, "-o", f"{folder}/torch/torch_").split()
    for rank, (dump, made) in enumerate(zip(dumps, pickles)):
        assert made.endswith(f"torch_{rank}")
        assert pickle.loads(Path(made).read_bytes()) == json.loads(Path(dump).read_text()), "the pickle is not the JSON"


def check_analyser(folder):
    """PyTorch's own analyser, where it is installed."""
    analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder, "-p", "torch_"]
    result = subprocess.run(analyser, capture_output=True, text=True, timeout=120)
    if "No module named" in result.stderr:
        print("PyTorch's analyser was not asked: this Python has no torch")
        return
    print(result.stdout, result.stderr)
    assert result.returncode == 0


def main():
    tool, library = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TUTTI_TRACE_DIR"] = folder

        def run(*arguments):
            return subprocess.run([tool, *arguments], check=True, capture_output=True, text=True, timeout=60).stdout

        run.tool = tool
        pids, root = start(library)
        try:
            sentence, end = "", time.monotonic() + 60
            while "waits for rank 2" not in sentence and time.monotonic() < end:
                time.sleep(0.1)
                sentence = subprocess.run([tool, "why"], capture_output=True, text=True, timeout=60).stdout
            print(sentence)
            assert "waits for rank 2" in sentence and f"kill -CONT {pids[2]}" in sentence
            table = run("show")
            print(table)
            assert table.count("in AllReduce(count=1, float, sum)") == RANKS - 1
            assert "stopped  after AllReduce(count=1, float, sum)" in table
            assert run("show", "--pid", str(pids[0])).count("rank ") >= RANKS
            late = run("late")
            print(late)
            assert [row[:2] for row in late_rows(late)] == [[str(rank), "20"] for rank in range(RANKS)]
            nobody = subprocess.run([tool, "show", "--pid", str(root)], capture_output=True, text=True, timeout=60)
            assert nobody.returncode == 1 and f"process {root} is in none of the 1 groups" in nobody.stderr, nobody.stderr
        finally:
            for pid in pids:  # so that no rank sees another one die
                os.kill(pid, signal.SIGSTOP)
            for pid in [*pids, root]:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        with open("/dev/full", "w") as full:
            lost = subprocess.run([tool, "why"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert lost.returncode == 1 and "stdout cannot be written" in lost.stderr, lost
        print(run("why"))
        assert "rank 2 has not called it yet" in run("why"), "of a job that was killed as a whole"
        with tempfile.TemporaryDirectory() as made:
            os.mkdir(f"{made}/torch")
            check_files(run, made)
            check_analyser(f"{made}/torch")
        wrong = subprocess.run([tool, "merge", tool], capture_output=True, text=True, timeout=60)
        assert wrong.returncode == 1 and "is not a trace of Tutti's" in wrong.stderr, wrong
        wrong = subprocess.run([tool, "merge", folder], capture_output=True, text=True, timeout=60)
        assert wrong.returncode == 1 and "Is a directory" in wrong.stderr, wrong


if __name__ == "__main__":
    main()
