"""Draws how long an all-reduce takes against the number of ranks, by each algorithm, as tutti-sim says. Needs matplotlib.

plot.py BUILD PREFIX [BYTES ...]: writes PREFIX.png, from 8 ranks to 65,536, on tutti-sim's usual hosts of 8 GPUs
"""
import json
import subprocess
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  the backend has to be chosen first

RANKS = [8, 16, 64, 256, 1024, 4096, 16384, 65536]
ALGORITHMS = ["ring", "circulant", "hierarchical", "doubling", "tree", "direct"]
# Algorithms that are simulated with few ranks only, because they soon have too many messages.
MOST_RANKS = {"tree": 1024, "doubling": 1024, "direct": 64, "hierarchical": 4096}


def time_us(build, algorithm, ranks, size):
    command = [f"{build}/tools/sim/tutti-sim", "all-reduce", "--ranks", str(ranks), "--bytes", size, "--algorithm",
               algorithm, "-J"]
    rows = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["rows"]
    return rows[0]["time_us"]


def draw(build, prefix, sizes):
    figure, axes = plt.subplots(1, len(sizes), figsize=(5.5 * len(sizes), 4.2), squeeze=False)
    for axis, size in zip(axes[0], sizes):
        for algorithm in ALGORITHMS:
            ranks = [n for n in RANKS if n <= MOST_RANKS.get(algorithm, n) and (algorithm != "hierarchical" or n > 8)]
            axis.plot(ranks, [time_us(build, algorithm, n, size) for n in ranks], marker=".", label=algorithm)
        axis.set(title=f"all-reduce of {size}", xlabel="ranks", ylabel="simulated time (µs)", xscale="log",
                 yscale="log")
        axis.set_xticks(RANKS, [str(n) for n in RANKS], rotation=45)
        axis.grid(alpha=0.3)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(f"{prefix}.png", dpi=80)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    draw(sys.argv[1], sys.argv[2], sys.argv[3:] or ["1M", "64M"])
