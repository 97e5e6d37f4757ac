"""Draws a result of tools/compare: time and bus bandwidth against size. Needs matplotlib.

plot.py RESULT.json PREFIX: writes PREFIX.svg and PREFIX.png
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  the backend has to be chosen first

import summary  # noqa: E402

STYLES = {
    "tutti": {"color": "#c0392b", "linewidth": 2.4, "zorder": 5, "label": "Tutti"},
    "old": {"color": "#c0392b", "linestyle": "--", "label": "Tutti, old"},
    "registered": {"color": "#e67e22", "linewidth": 2.4, "zorder": 5, "label": "Tutti, tuttiMemAlloc"},
    "openmpi": {"color": "#2471a3", "label": "Open MPI"},
    "mpich": {"color": "#1e8449", "label": "MPICH"},
    "openmpi5": {"color": "#5dade2", "label": "Open MPI 5"},
    "mpich5": {"color": "#58d68d", "label": "MPICH 5"},
    "impi": {"color": "#b7950b", "label": "Intel MPI"},
    "gloo": {"color": "#7d3c98", "label": "Gloo"},
    "torch": {"color": "#d2b4de", "label": "PyTorch, gloo"},
    "mapped": {"color": "#777777", "linestyle": ":", "label": "floor, mapped buffers"},
    "cma": {"color": "#777777", "linestyle": "--", "label": "floor, process_vm_readv"},
    "bounce": {"color": "#777777", "linestyle": "-.", "label": "floor, shared pieces"},
    "sockets": {"color": "#777777", "linestyle": "--", "label": "floor, sockets"},
}


def lines(result, mode):
    """Sizes and times of each line of the plot; for a peer those of its best tuning."""
    found = {name: ([], []) for name in STYLES}
    for row in summary.rows(result, mode):
        for name, time in {**row["microseconds"], **row["libraries"]}.items():
            if name in found and time is not None:
                found[name][0].append(row["bytes"])
                found[name][1].append(time)
    return {name: points for name, points in found.items() if points[0]}


def draw(result):
    modes = list(result["samples"])
    figure, axes = plt.subplots(len(modes), 2, figsize=(11, 4.2 * len(modes)), squeeze=False)
    factor = summary.bus_factor(result["op"], result["ranks"])
    for (time_axis, rate_axis), mode in zip(axes, modes):
        for name, (sizes, times) in lines(result, mode).items():
            time_axis.plot(sizes, times, marker=".", **STYLES[name])
            rates = [size * factor / time / 1e3 for size, time in zip(sizes, times)]
            rate_axis.plot(sizes, rates, marker=".", **STYLES[name])
        time_axis.set(title=summary.MODES[mode], ylabel="time (µs)", yscale="log")
        rate_axis.set(ylabel="bus bandwidth (GB/s)", yscale="log")
        for axis in (time_axis, rate_axis):
            axis.set_xscale("log", base=2)
            ticks = [1 << power for power in range(3, 31, 3)]
            sizes = [row["bytes"] for row in summary.rows(result, mode)]
            ticks = [tick for tick in ticks if min(sizes) <= tick <= max(sizes)]
            axis.set_xticks(ticks, [summary.size_text(tick) for tick in ticks])
            axis.set_xlabel("size (bytes)")
            axis.grid(alpha=0.3)
    labels = axes[0][0].get_legend_handles_labels()
    figure.legend(*labels, loc="lower center", ncol=4, fontsize="small", frameon=False)
    figure.suptitle(summary.heading(result))
    figure.tight_layout(rect=(0, 0.12 / len(modes), 1, 1))
    return figure


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        result = json.load(file)
    # No date and no random names: the same result gives the same file.
    plt.rcParams["svg.hashsalt"] = "tutti"
    figure = draw(result)
    figure.savefig(sys.argv[2] + ".svg", metadata={"Date": None})
    figure.savefig(sys.argv[2] + ".png", dpi=110)


if __name__ == "__main__":
    main()
