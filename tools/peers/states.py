"""Batches that were timed while the machine was in one state.

The host moves a virtual machine's CPUs: at times two of them share a core, and then everything that goes from one to
the other takes a third of the time. Medians over both states would compare one program in one state with another
program in the other. So each batch records how long its ranks took to see each other's flags before and after it, and
only batches of one state count.
"""
import statistics

# Between the states: measured 0.04 us where CPUs share a core, 0.11 and more where they do not.
APART = 1.8


def boundary(batches):
    """The border between the two states in microseconds; None if there was only one."""
    values = sorted(value for batch in batches for value in batch["exchange_us"] if value > 0)
    gaps = [(right / left, (left * right) ** 0.5) for left, right in zip(values, values[1:])]
    # Stragglers cause gaps, too: on either side of a border there must be at least a tenth of the values.
    tenth = len(gaps) // 10
    widest = max(gaps[tenth:len(gaps) - tenth], default=(1, 0))
    if not gaps or statistics.median(values[-max(1, tenth):]) < APART * statistics.median(values[:max(1, tenth)]):
        return None
    return widest[1] if widest[0] > 1.1 else None


def state_of(batch, border):
    before, after = batch["exchange_us"]
    if border is None:
        return "any"
    if max(before, after) < border:
        return "near"
    return "far" if min(before, after) > border else "between"


def select(batches, wanted):
    """(batches of one state, a remark about it). `wanted`: near, far, any, or most."""
    border = None if wanted == "any" else boundary(batches)
    by_state = {}
    for batch in batches:
        by_state.setdefault(state_of(batch, border), []).append(batch)
    if border is None:
        return batches, f"the CPUs were in one state only: --cpus {wanted} chose nothing" if wanted in ("near", "far") else ""
    kept_state = wanted if wanted != "most" else max(("near", "far"), key=lambda state: len(by_state.get(state, [])))
    kept = by_state.get(kept_state, [])
    other = {"near": "apart", "far": "near each other"}[kept_state]
    where = {"near": "near each other (they share a core)", "far": "apart"}[kept_state]
    if not kept:
        return [], f"the CPUs were never {where}"
    typical = statistics.median(value for batch in kept for value in batch["exchange_us"])
    return kept, (f"{len(kept)} of {len(batches)} batches count, in which the CPUs were {where}: a flag took "
                  f"{typical:.2f} us; in the others they were {other} or changed (--cpus)")
