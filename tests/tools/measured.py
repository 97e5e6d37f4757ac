#!/usr/bin/env python3
"""The library's choices, judged by what was measured once: a change of what algorithms cost on paper is seen here, on
any machine. measured.txt has what each algorithm took, a line for each operation, in microseconds.

  measured.py TUTTI_TUNE          judges each group
  measured.py --from SAMPLES...   prints such a file, of what tests/launch/regret.sh -o leaves: medians
"""
import collections
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

MEAN_REGRET, WORST_REGRET, MEDIAN_ERROR = 5, 25, 30  # percent


def samples_of_groups():
    groups = {}
    for line in (pathlib.Path(__file__).parent / "measured.txt").read_text().splitlines():
        if line.startswith("facts: "):
            facts = line
            groups[facts] = []
        elif line and not line.startswith("#"):
            collective, n_bytes, *took = line.split()
            for algo, us in (each.split("=") for each in took):
                groups[facts].append({"facts": facts + "\n", "collective": collective, "bytes": int(n_bytes),
                                      "algo": algo, "free": False, "ns": 1e3 * float(us)})
    return groups


def judge(tune):
    wrong = 0
    groups = samples_of_groups()
    for facts, samples in groups.items():
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(samples, file)
            file.flush()
            said = subprocess.run([tune, "--fit", file.name, "-o", "/dev/null"], capture_output=True, text=True)
        as_it_is = re.search(r"# as it is: (regret ([\d.]+) % in the mean, ([\d.]+) % at worst .*"
                             r"predictions are off by ([\d.]+) % in the median)", said.stdout)
        if not as_it_is:
            sys.exit(f"{facts}\n{said.stdout}{said.stderr}")
        mean, worst, error = map(float, as_it_is.groups()[1:])
        bad = mean > MEAN_REGRET or worst > WORST_REGRET or error > MEDIAN_ERROR
        print(f"{facts}\n  {'WRONG: ' if bad else ''}{as_it_is.group(1)}")
        wrong += bad
    print(f"{len(groups)} groups, {wrong} wrong")
    return wrong > 0


def print_medians(files):
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    for sample in (s for file in files for s in json.loads(pathlib.Path(file).read_text())):
        if not sample["free"]:
            place = sample["facts"].strip(), sample["collective"], sample["bytes"]
            times[place][sample["algo"]].append(sample["ns"])
    last = None
    for (facts, collective, n_bytes), algos in sorted(times.items(), key=lambda item: item[0][0]):
        if facts != last:
            print(f"\n{facts}")
        last = facts
        print(collective, n_bytes, *(f"{a}={statistics.median(ns) / 1e3:.3g}" for a, ns in algos.items()))


if len(sys.argv) > 2 and sys.argv[1] == "--from":
    print_medians(sys.argv[2:])
else:
    sys.exit(judge(sys.argv[1]))
