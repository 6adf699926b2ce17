"""A recorded or drawn sequence of requests: the arrival of each, its type, and what it may depend on."""

from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.hashing import document_key, unit_draws
from penstock.paths.documents import ApplicationDocument


class Sequence(NamedTuple):
    """Requests in the order in which they come."""

    arrivals: Array  # float64: microseconds, ascending
    types: Array  # int32
    groups: Array  # int64: the address of a request, or the number of its message
    noise: Array  # float64 [requests, visits of the longest path], or empty: by what share a visit takes longer


def workload_shares(application: ApplicationDocument, workload: str | None) -> tuple[str, Array]:
    """The name of a workload (the first if None) and the share of each request type, which add up to 1."""
    name = next(iter(application.workloads)) if workload is None else workload
    if name not in application.workloads:
        raise PenstockError(
            f"{application.name} has no workload {name!r}{nearest(name, application.workloads)}", code="unknown-name"
        )
    weights = np.array([application.workloads[name].get(each, 0.0) for each in application.requests], np.float64)
    return name, weights / weights.sum()


def draw_sequence(
    application: ApplicationDocument, workload: str | None, rate: float, count: int, seed: int
) -> Sequence:
    """`count` requests that come at random (Poisson) at `rate` requests per second; the same ones for the same seed.

    Sequences of two rates under one seed have the same types and addresses, and arrivals of the same pattern.
    """
    if not (rate > 0 and np.isfinite(rate)):
        raise PenstockError(
            f"A load of {rate:g} requests per second: give a number above 0.", code="value-out-of-range"
        )
    _, shares = workload_shares(application, workload)
    size = application.message_requests
    messages = -(-count // size)
    waits = -np.log1p(-_units(seed, "arrivals", messages))
    arrivals = np.repeat(np.cumsum(waits) * (1e6 * size / rate), size)[:count]
    kinds = np.searchsorted(np.cumsum(shares), _units(seed, "types", messages), side="right")
    types = np.repeat(np.minimum(kinds, len(shares) - 1), size)[:count].astype(np.int32)
    if any(request.depends == "message" for request in application.requests.values()):
        groups = np.arange(count, dtype=np.int64) // size
    else:
        groups = _zipf(_units(seed, "addresses", count), application.addresses, application.skew)
    return Sequence(arrivals, types, groups, np.empty((0, 0)))


def with_noise(sequence: Sequence, visits: int, share: float, seed: int) -> Sequence:
    """The sequence, with each visit taking up to `share` longer than profiled, at random, as real nodes do."""
    noise = _units(seed, "noise", len(sequence.arrivals) * visits) * share
    return sequence._replace(noise=noise.reshape(len(sequence.arrivals), visits))


def _units(seed: int, purpose: str, count: int) -> Array:
    return unit_draws(document_key(seed, "paths {}", purpose), count)


def _zipf(draws: Array, count: int, skew: float) -> Array:
    """Numbers below `count`, of which number i is drawn in proportion to 1 / (i + 1) ** skew."""
    if count == 1:
        return np.zeros(len(draws), np.int64)
    shares = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -skew)
    found: Array = np.searchsorted(shares, draws * shares[-1], side="right")
    return found.astype(np.int64)
