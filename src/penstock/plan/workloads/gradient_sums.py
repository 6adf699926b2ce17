"""Gradients summed by parameter servers, or around a ring of the workers: their tasks and flows."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.simulate.workload_builder import Item, WorkloadBuilder

_ROUNDS = 8
"""The most simulated steps of a ring."""


class Summed(NamedTuple):
    """Gradients that are summed together."""

    label: str
    """A label in the names of tasks and flows."""
    bytes: float
    computed: Sequence[Item]
    """The task of each worker that computes its gradients."""
    following: Sequence[Item]
    """The task of each worker that needs the sum."""
    lag: int = 0
    """How many iterations later it needs it."""


def sum_on_servers(building: WorkloadBuilder, summed: Summed, servers: Sequence[Item], seconds: float) -> None:
    """Every server gets its share of the gradients from all workers, and sends back weights."""
    shard = summed.bytes / len(servers)
    for number, server in enumerate(servers):
        added = building.work(f"sum {number}.{summed.label}", "sum", seconds, server)
        for rank, (step, next_step) in enumerate(zip(summed.computed, summed.following, strict=True)):
            building.flow(
                step, added, shard, "gradients",
                name=f"gradients {rank}.{summed.label} to {number}", follows_itself=False,
            )  # fmt: skip
            building.flow(
                added, next_step, shard, "weights",
                name=f"weights {number} to {rank}.{summed.label}", arrival_lag=summed.lag, follows_itself=False,
            )  # fmt: skip


def sum_around_ring(building: WorkloadBuilder, summed: Summed, workers: Sequence[Item]) -> None:
    """2(n - 1) steps in which every worker sends an n-th to the next, one after the other.

    A ring of many workers is simulated with fewer and larger steps, as many bytes in all. These do not propagate the
    delay of a late worker all the way around, so all wait for the last one first: with every step, each would wait for
    it too.
    """
    computed, following, label = summed.computed, summed.following, summed.label
    size = len(computed)
    rounds = min(2 * (size - 1), _ROUNDS)
    sent = summed.bytes * 2 * (size - 1) / size / rounds
    hops = [
        [building.work(f"hop {rank}.{label}.{hop}", "hop", 0.0, workers[rank]) for hop in range(rounds)]
        for rank in range(size)
    ]
    whole = rounds == 2 * (size - 1)
    first = computed if whole else [_all_computed(building, label, computed, workers[0])] * size
    for rank in range(size):
        building.wait(first[rank], hops[rank][0])
        right = (rank + 1) % size
        for hop in range(rounds):
            ends = hop == rounds - 1
            sending = building.flow(
                hops[rank][hop], following[right] if ends else hops[right][hop + 1], sent, "ring",
                name=f"ring {rank}.{label}.{hop}", coflow=f"ring {label}.{hop}",
                arrival_lag=summed.lag if ends else 0, follows_itself=False,
            )  # fmt: skip
            if not ends:
                # A worker sends one step's share after the other.
                building.wait(sending, hops[rank][hop + 1])


def _all_computed(building: WorkloadBuilder, label: str, computed: Sequence[Item], worker: Item) -> Item:
    """A task that ends when every worker has computed."""
    last = building.work(f"computed {label}", "hop", 0.0, worker)
    for each in computed:
        building.wait(each, last)
    return last
