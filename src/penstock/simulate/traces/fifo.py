"""`fifo`: coflows in the order of arrival; each takes what those before it leave, max-min fair among its own flows."""

from penstock.graph.arrays import Array
from penstock.simulate.traces.kernels import nested
from penstock.simulate.traces.lines import Lines
from penstock.simulate.traces.max_min import fill
from penstock.simulate.traces.progress import TraceProgress


@nested
def share_evenly(progress: TraceProgress, lines: Lines, capacities: Array, coflow: int) -> None:
    """Give a coflow max-min rates out of what is left, and take them from it."""
    fill(lines, coflow, progress.living, capacities, progress.spare, progress.crossing, progress.rate)
