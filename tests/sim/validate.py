"""validate.py BUILD_DIR [--jobs N] [--samples FOLDER] [GROUP...]: how far tutti-sim is from what all-reduces take on this
machine. tests/launch/regret.sh measures groups (its kinds; "HOSTSxRANKS" needs root), each in several jobs. Of every other
size, tutti-tune finds what messages and bytes cost over shared memory, over TCP and between hosts; tutti-sim simulates the
all-reduces of the sizes between. On a quiet machine; it takes 20 minutes. --samples: keeps the measurements in that
folder, and if they are there, measures nothing."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GROUPS = ("shm:2", "shm:4", "shm:8", "tcp:2", "tcp:4", "tcp:8", "2x1", "4x1", "8x1", "4x2")
SIZES = {"here": "64M", "network": "4M"}  # the largest; from 256 bytes on, times 4; simulated from 1 KiB on
TIE = 1.05
# The other algorithms equal one of these if hosts have one rank, or if there is only one host.
ALGORITHMS = ("ring", "tree", "direct", "circulant", "doubling", "oneshot", "linear")


def output_of(*command):
    done = subprocess.run([str(word) for word in command], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed: {done.stdout}")
    return done.stdout


def kind_of(group):
    """Groups of one kind have the same costs."""
    return group.split(":")[0] if ":" in group else f"x{group.split('x')[1]}"


def measure(build, folder, groups, jobs):
    for group in groups:
        most = SIZES["here" if ":" in group else "network"]
        output_of(ROOT / "tests/launch/regret.sh", f"{build}/tools/tune/tutti-tune", "-o", folder, "-r", jobs, group,
                  "--", "-b", "256", "-e", most, "-f", "4", "-n", "3")


def read(folder, group):
    """The samples of each job."""
    files = sorted(pathlib.Path(folder).glob(f"{group.replace(':', '-')}.*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def asked_sizes(jobs):
    """Every other size of all-reduce; these are not learned from."""
    return sorted({sample["bytes"] for job in jobs for sample in job if sample["collective"] == "AllReduce"})[1::2]


def times_of(jobs):
    """Microseconds of each all-reduce at these sizes, by (bytes, algorithm): the medians of the jobs."""
    found, asked = {}, asked_sizes(jobs)
    for job in jobs:
        for sample in job:
            if sample["collective"] == "AllReduce" and not sample["free"] and sample["algo"] in ALGORITHMS and sample["bytes"] in asked:
                found.setdefault((sample["bytes"], sample["algo"]), []).append(sample["ns"] / 1000)
    return {point: statistics.median(us) for point, us in found.items()}


def learn(build, folder, kind, groups):
    """Writes the description of the hosts on which the groups ran."""
    learned = []
    for group in groups:
        jobs = read(folder, group)
        asked = asked_sizes(jobs)
        for sample in (sample for job in jobs for sample in job):
            in_blocks = sample["collective"] in ("AllGather", "ReduceScatter", "AlltoAll")
            whole = sample["bytes"] * (int(sample["facts"].split()[1]) if in_blocks else 1)
            if whole not in asked:
                learned.append(sample)
    samples, hosts = pathlib.Path(folder, f"learned-{kind}"), pathlib.Path(folder, f"hosts-{kind}.json")
    samples.write_text(json.dumps(learned), encoding="utf-8")
    way = kind if kind in ("shm", "tcp") else "namespaces"
    output_of(f"{build}/tools/tune/tutti-tune", "--fit", samples, "--simulated", way, "-o", hosts)
    return hosts


def simulate(build, hosts, n_ranks, points):
    times = {}
    for size, algorithm in points:
        out = output_of(f"{build}/tools/sim/tutti-sim", "all-reduce", "--topology", hosts, "--ranks", n_ranks, "--bytes", size,
                        "--algorithm", algorithm, "--row", 4, "-J")
        times[size, algorithm] = json.loads(out)["rows"][0]["time_us"]
    return times


def judge(times, guesses):
    """The errors, and how much longer than the fastest the predicted one takes, wherever that leads by more than a tie."""
    errors = [abs(guesses[point] / times[point] - 1) for point in times if point in guesses]
    named = []
    for size in {point[0] for point in times}:
        points = [point for point in times if point[0] == size and point in guesses]
        fastest = sorted(times[point] for point in points)[:2]
        if len(fastest) == 2 and fastest[1] > TIE * fastest[0]:
            named.append(times[min(points, key=guesses.get)] / fastest[0] - 1)
    return errors, named


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("groups", nargs="*", default=GROUPS)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--samples")
    options = parser.parse_args()
    folder = options.samples or tempfile.mkdtemp()
    pathlib.Path(folder).mkdir(exist_ok=True)
    if not any(pathlib.Path(folder).glob("*.*.json")):
        measure(options.build, folder, options.groups, options.jobs)
    hosts, lines, totals = {}, [], {"simulated": ([], []), "itself": ([], [])}
    for kind in dict.fromkeys(map(kind_of, options.groups)):
        hosts[kind] = learn(options.build, folder, kind, [group for group in options.groups if kind_of(group) == kind])
        print(f"# {kind}: {' '.join(hosts[kind].read_text(encoding='utf-8').split())}")
    print("# group    bytes algorithm          measured (us)  simulated (us)  error")
    for group in options.groups:
        jobs = read(folder, group)
        n_ranks = int(jobs[0][0]["facts"].split()[1])
        times = times_of(jobs)
        guesses = simulate(options.build, hosts[kind_of(group)], n_ranks, times)
        for (size, algorithm), us in sorted(times.items()):
            guess = guesses[size, algorithm]
            print(f"{group:6} {size:9} {algorithm:17} {us:14.2f} {guess:15.2f} {100 * (guess / us - 1):+5.0f}%")
        # No simulator can be closer to the machine than the machine is to itself.
        for name, verdict in (("simulated", judge(times, guesses)), ("itself", judge(times_of(jobs[::2]), times_of(jobs[1::2])))):
            for total, part in zip(totals[name], verdict):
                total += part
            lines.append((group, name, *verdict))
    lines += [("all", name, *total) for name, total in totals.items()]
    for group, name, errors, named in lines:
        print(f"# {group:6} {name:10} median error {100 * statistics.median(errors):3.0f} % of {len(errors):3}; the fastest "
              f"named at {named.count(0):2} of {len(named):2} where it is more than 5 % ahead; what is named takes "
              f"{100 * max(named, default=0):.0f} % more at most")


if __name__ == "__main__":
    sys.exit(main())
