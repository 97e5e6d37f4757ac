"""validate.py BUILD_DIR: how far tutti-sim is from what operations take on this machine, over shared memory and TCP, with
prices that tutti-tune measures in turns with them. --prices FILE: with those of that file. On a quiet machine; it takes
six minutes."""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile

TRANSPORTS = ("shm", "tcp")
RANKS = (2, 4)
# Bytes, and operations that are timed in a row: what is small has to be done often, or the start of the row is what counts.
SIZES = {"1024": "3000", "16384": "1000", "262144": "200", "4194304": "30"}
ALGORITHMS = ("ring", "tree", "direct", "rabenseifner", "doubling")
TURNS = 5
TIE = 1.05


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def tune(build, samples):
    for ranks in RANKS:
        output_of(f"{build}/tools/tune/tutti-tune", "--procs", str(ranks), "-e", "4M", "-n", "3", "--check",
                  "--samples", f"{samples}.{ranks}")


def simulated(build, transport, ranks, algorithm, size):
    """The faster of one lane and two."""
    out = output_of(f"{build}/tools/sim/tutti-sim", "all-reduce", "--topology", f"this-host:{transport}", "--ranks", str(ranks),
                    "--bytes", size, "--algorithm", algorithm, "-J")
    return json.loads(out)["rows"][0]["time_us"]


def measure(build, times):
    """Adds the microseconds of each operation."""
    for transport in TRANSPORTS:
        for ranks in RANKS:
            for size, count in SIZES.items():
                for algorithm in ALGORITHMS:
                    out = output_of(f"{build}/tools/perf/all_reduce_perf", "--procs", str(ranks), "--transport", transport,
                                    "-b", size, "-e", size, "-n", count, "-w", "5", "-c", "0", "--algo", algorithm)
                    row = [line.split() for line in out.splitlines() if line.strip() and not line.startswith("#")][0]
                    times.setdefault((transport, ranks, size, algorithm), []).append(float(row[5]))


def compare(build, times):
    """Prints each point; returns the errors by transport, and whether the winner was named, where there is one."""
    errors, winners = {transport: [] for transport in TRANSPORTS}, []
    print("transport ranks   bytes algorithm  measured (us)  simulated (us)  error")
    for transport in TRANSPORTS:
        for ranks in RANKS:
            for size in SIZES:
                real = {algorithm: statistics.median(times[transport, ranks, size, algorithm]) for algorithm in ALGORITHMS}
                guesses = {algorithm: simulated(build, transport, ranks, algorithm, size) for algorithm in ALGORITHMS}
                for algorithm in ALGORITHMS:
                    error = abs(guesses[algorithm] / real[algorithm] - 1)
                    errors[transport].append(error)
                    print(f"{transport:9} {ranks:5} {size:>7} {algorithm:9} {real[algorithm]:14.2f} {guesses[algorithm]:15.2f} "
                          f"{100 * error:5.0f}%", flush=True)
                first, second = sorted(real.values())[:2]
                if second > TIE * first:
                    winners.append(min(real, key=real.get) == min(guesses, key=guesses.get))
    return errors, winners


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--prices", help="a file that tutti-tune has written")
    options = parser.parse_args()
    os.environ["TUTTI_TUNE_FILE"] = "/dev/null"
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        # A virtual machine is faster at one time than at another, so both are medians over all of it.
        for turn in range(TURNS):
            if not options.prices:
                tune(options.build, f"{folder}/{turn}")
            measure(options.build, times)
        if not options.prices:
            output_of(f"{options.build}/tools/tune/tutti-tune", "--fit", *glob.glob(f"{folder}/*"), "-o", f"{folder}/prices")
        os.environ["TUTTI_TUNE_FILE"] = options.prices or f"{folder}/prices"
        errors, winners = compare(options.build, times)
    for transport, found in errors.items():
        print(f"# {transport}: median error {100 * statistics.median(found):.0f} % of {len(found)} points")
    print(f"# the winner named at {sum(winners)} of {len(winners)} points where the first is more than 5 % ahead")


if __name__ == "__main__":
    sys.exit(main())
