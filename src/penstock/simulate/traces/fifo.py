"""`fifo`: coflows in the order of arrival; each takes what those before it leave, max-min fair among its own flows."""

from penstock.graph.arrays import Array
from penstock.simulate.traces.filling import fill
from penstock.simulate.traces.kernels import nested
from penstock.simulate.traces.lines import Lines
from penstock.simulate.traces.progress import Progress


@nested
def share_evenly(progress: Progress, lines: Lines, capacities: Array, coflow: int) -> None:
    """Give a coflow max-min rates out of what is left, and take them from it."""
    fill(lines, coflow, progress.living, capacities, progress.spare, progress.crossing, progress.rate)
