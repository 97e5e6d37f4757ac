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
SIZES = ("1024", "16384", "262144", "4194304")
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


def measured(build, transport, ranks, algorithm):
    """Microseconds by size, the least of some starts: what others do on the machine only adds to them."""
    found = {size: [] for size in SIZES}
    for _ in range(TURNS):
        out = output_of(f"{build}/tools/perf/all_reduce_perf", "--procs", str(ranks), "--transport", transport, "-b", SIZES[0], "-e",
                        SIZES[-1], "-f", "16", "-n", "30", "-w", "5", "-c", "0", "--algo", algorithm)
        rows = [line.split() for line in out.splitlines() if line.strip() and not line.startswith("#")]
        for row in rows:
            found[row[0]].append(float(row[5]))
    return {size: min(times) for size, times in found.items()}


def compare(build):
    """Prints each point; returns the errors by transport, and whether the winner was named, where there is one."""
    errors, winners = {"shm": [], "tcp": []}, []
    print("transport ranks   bytes algorithm  measured (us)  simulated (us)  error")
    for transport in errors:
        for ranks in RANKS:
            real = {algorithm: measured(build, transport, ranks, algorithm) for algorithm in ALGORITHMS}
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
