"""The amounts of each iteration: seconds of every task and bytes of every flow, drawn around their means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.hashing import document_key, draw, unit
from penstock.kernels import njit
from penstock.simulate.workload import Workload


class Amounts(NamedTuple):
    """The amounts of a workload's iterations."""

    seconds: Array  # float64 [iterations, tasks], on a machine of speed 1
    sizes: Array  # float64 [iterations, flows]: bytes


class Spread(Protocol):
    """A distribution of mean 1: turns uniform draws of [0, 1) into factors of the mean."""

    def factors(self, uniform: Array) -> Array: ...


@dataclass(frozen=True)
class Constant:
    """An amount that is always its mean."""

    def factors(self, uniform: Array) -> Array:
        return np.ones_like(uniform)


class Quantiles:
    """A measured sample: its quantiles, joined by straight lines, over its mean."""

    def __init__(self, sample: Sequence[float] | Array) -> None:
        values = np.sort(np.asarray(sample, np.float64))
        if len(values) == 0 or not np.isfinite(values).all() or values[0] < 0 or values[-1] <= 0:
            raise PenstockError(
                "A measured sample must hold finite numbers of 0 or more, at least one of them above 0: profile again.",
                code="value-out-of-range",
            )
        # Straight lines between sorted values have this mean, not that of the values themselves.
        mean = values.mean() if len(values) == 1 else float(np.mean((values[1:] + values[:-1]) / 2))
        self._levels = np.linspace(0, 1, len(values)) if len(values) > 1 else np.zeros(1)
        self._values = values / mean

    def factors(self, uniform: Array) -> Array:
        """The sample's values over their mean."""
        return np.asarray(np.interp(uniform, self._levels, self._values))


@dataclass(frozen=True)
class PeakToMean:
    """Factors up to `ratio`, with mean 1: ratio x u^(ratio - 1); 1 is constant, 2 uniform, above 2 mostly small."""

    ratio: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.ratio) and self.ratio >= 1):
            raise PenstockError(f"The peak-to-mean ratio is {self.ratio:g}: give 1 or more.", code="value-out-of-range")

    def factors(self, uniform: Array) -> Array:
        return np.asarray(self.ratio * uniform ** (self.ratio - 1))


def draw_amounts(
    load: Workload, iterations: int, seed: int = 0, spreads: Mapping[str, Spread] | None = None
) -> Amounts:
    """Amounts of so many iterations; `spreads` gives a distribution to a kind of task or flow, others are constant.

    An amount depends only on the seed, the iteration and the item's number.
    """
    if iterations < 1:
        raise PenstockError(f"The number of iterations is {iterations}: ask for at least 1.", code="value-out-of-range")
    kinds = load.item_kinds
    means = np.concatenate([load.task_seconds, load.flow_bytes])
    out = np.repeat(means[None, :], iterations, axis=0)
    key = document_key(seed, "amounts")
    for kind, spread in (spreads or {}).items():
        items = np.flatnonzero(np.array(kinds) == kind)
        if len(items) == 0:
            raise PenstockError(
                f"No task or flow of the workload is of kind {kind!r}{nearest(kind, sorted(set(kinds)))}",
                code="unknown-name",
            )
        if not isinstance(spread, Constant):
            out[:, items] *= spread.factors(_uniform(key, iterations, items))
    return Amounts(np.ascontiguousarray(out[:, : load.tasks]), np.ascontiguousarray(out[:, load.tasks :]))


@njit(nogil=True, cache=True)
def _uniform(key: np.uint64, iterations: int, items: Array) -> Array:
    out = np.empty((iterations, items.shape[0]))
    for n in range(iterations):
        for k in range(items.shape[0]):
            out[n, k] = unit(draw(key, (np.uint64(n) << np.uint64(32)) + np.uint64(items[k])))
    return out
