"""What a store holds for other machines: mapped where the part's folder is there, else copied from its owner."""

from types import SimpleNamespace

import numpy as np
import pytest

from meeting_posts import meeting_posts
from penstock.cluster.tasks.store import held_rows
from penstock.hardware.cluster import ClusterDocument
from penstock.partition import Cut, cut
from penstock.partition.folder import Partition
from penstock.store.parts import StoreService
from refusals import refused
from training_graphs import community_graph

MACHINES = [{"name": "m0"}, {"name": "m1", "memory_gb": 1.0}]


@pytest.fixture(scope="module")
def partition(tmp_path_factory):
    """A graph in two parts."""
    return cut(community_graph(), Cut(2, 1, "random"), tmp_path_factory.mktemp("replicas") / "parts")


@pytest.fixture
def held(partition, tmp_path):
    """Asks what the second machine's store holds of the first part."""
    with meeting_posts() as posts:
        owner, copy = posts("store-m0", "store-m1")
        StoreService(owner, {0: partition.part(0)})

        def rows(machines=MACHINES, **replica):
            cluster = ClusterDocument(machines=machines, replicas=[{"part": 0, "machine": "m1", **replica}])
            setup = SimpleNamespace(
                cluster=cluster,
                task=SimpleNamespace(machine="m1"),
                job={"features": "x"},
                layout=SimpleNamespace(owners=["store-m0", "store-m1"]),
                run=str(tmp_path),
            )
            member = SimpleNamespace(setup=setup, endpoint=copy)
            return dict(held_rows(member, partition, {1: partition.part(1)}))[0, "node/x"]

        yield rows


def exact(partition):
    return partition.part(0).nodes["node"].fields["x"]


def test_a_part_that_is_here_is_mapped(partition, held):
    found = held()
    assert found.numbers is None and not found.compact and isinstance(found.table.base, np.memmap | np.ndarray)
    np.testing.assert_array_equal(found.table, exact(partition))


@pytest.mark.parametrize("rows", ["all", 0.25, 7, 10_000])
def test_a_part_that_is_elsewhere_is_copied(partition, held, monkeypatch, rows):
    mapped = held(rows=rows)
    monkeypatch.setattr(Partition, "has_part", lambda self, part: False)
    copied = held(rows=rows)
    count = len(exact(partition))
    if rows == "all":
        assert copied.numbers is None
        np.testing.assert_array_equal(copied.table, exact(partition))
        return
    np.testing.assert_array_equal(copied.numbers, mapped.numbers)
    assert len(copied.numbers) == {0.25: round(0.25 * count), 7: 7, 10_000: count}[rows]
    np.testing.assert_array_equal(copied.table, exact(partition)[copied.numbers])
    wanted = copied.numbers[::2]
    for each in (copied, mapped):
        np.testing.assert_array_equal(each.table[each.slots(wanted)], exact(partition)[wanted])


def test_the_rows_that_occur_most_in_the_machines_own_lists_are_held(partition, held):
    first, last = partition.book.range(0)
    (edges,) = partition.part(1).edges.values()
    near = edges.indices[(edges.indices >= first) & (edges.indices < last)] - first
    counts = np.bincount(near, minlength=last - first)
    numbers = held(rows=10).numbers
    assert counts[numbers].sum() == np.sort(counts)[-10:].sum()


def test_copies_beyond_a_machines_memory_are_refused(held, monkeypatch):
    monkeypatch.setattr(Partition, "has_part", lambda self, part: False)
    with refused("infeasible m1 memory_gb"):
        held(machines=[{"name": "m0"}, {"name": "m1", "memory_gb": 1e-7}])
