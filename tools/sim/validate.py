"""validate.py BUILD_DIR: how far tutti-sim is from what operations take on this machine, over shared memory and TCP, with
prices that tutti-tune measures first. --prices FILE: with those of that file. On a quiet machine; it takes two minutes."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

RANKS = (2, 4)
# Bytes, and operations that are timed in a row: what is small has to be done often, or the start of the row is what counts.
SIZES = {"1024": "3000", "16384": "1000", "262144": "200", "4194304": "30"}
ALGORITHMS = ("ring", "tree", "direct", "rabenseifner", "doubling")
TURNS = 5
TIE = 1.05


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def tuned(build, folder):
    """Prices that fit all numbers of ranks."""
    tune = f"{build}/tools/tune/tutti-tune"
    samples = [f"{folder}/{ranks}.json" for ranks in RANKS]
    for ranks, path in zip(RANKS, samples):
        output_of(tune, "--procs", str(ranks), "-e", "4M", "--check", "--samples", path)
    output_of(tune, "--fit", *samples, "-o", f"{folder}/prices")
    return f"{folder}/prices"


def simulated(build, transport, ranks, algorithm, size):
    """The faster of one lane and two."""
    out = output_of(f"{build}/tools/sim/tutti-sim", "all-reduce", "--topology", f"this-host:{transport}", "--ranks", str(ranks),
                    "--bytes", size, "--algorithm", algorithm, "-J")
    return json.loads(out)["rows"][0]["time_us"]


def measured(build, transport, ranks):
    """Microseconds by algorithm and size, the least of some turns: what others do on the machine only adds to them. A turn
    has all of them, because a virtual machine is faster at one time than at another."""
    found = {algorithm: {size: [] for size in SIZES} for algorithm in ALGORITHMS}
    for _ in range(TURNS):
        for size, count in SIZES.items():
            for algorithm in ALGORITHMS:
                out = output_of(f"{build}/tools/perf/all_reduce_perf", "--procs", str(ranks), "--transport", transport, "-b", size,
                                "-e", size, "-n", count, "-w", "5", "-c", "0", "--algo", algorithm)
                row = [line.split() for line in out.splitlines() if line.strip() and not line.startswith("#")][0]
                found[algorithm][size].append(float(row[5]))
    return {algorithm: {size: min(times) for size, times in by_size.items()} for algorithm, by_size in found.items()}


def compare(build):
    """Prints each point; returns the errors by transport, and whether the winner was named, where there is one."""
    errors, winners = {"shm": [], "tcp": []}, []
    print("transport ranks   bytes algorithm  measured (us)  simulated (us)  error")
    for transport in errors:
        for ranks in RANKS:
            real = measured(build, transport, ranks)
            for size in SIZES:
                times = {algorithm: real[algorithm][size] for algorithm in ALGORITHMS}
                guesses = {algorithm: simulated(build, transport, ranks, algorithm, size) for algorithm in ALGORITHMS}
                for algorithm in ALGORITHMS:
                    error = abs(guesses[algorithm] / times[algorithm] - 1)
                    errors[transport].append(error)
                    print(f"{transport:9} {ranks:5} {size:>7} {algorithm:9} {times[algorithm]:14.2f} {guesses[algorithm]:15.2f} "
                          f"{100 * error:5.0f}%", flush=True)
                first, second = sorted(times.values())[:2]
                if second > TIE * first:
                    winners.append(min(times, key=times.get) == min(guesses, key=guesses.get))
    return errors, winners


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--prices", help="a file that tutti-tune has written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TUTTI_TUNE_FILE"] = "/dev/null"
        os.environ["TUTTI_TUNE_FILE"] = options.prices or tuned(options.build, folder)
        errors, winners = compare(options.build)
    for transport, found in errors.items():
        print(f"# {transport}: median error {100 * statistics.median(found):.0f} % of {len(found)} points")
    print(f"# the winner named at {sum(winners)} of {len(winners)} points where the first is more than 5 % ahead")


if __name__ == "__main__":
    sys.exit(main())
