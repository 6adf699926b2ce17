"""LABOR's batches of a cut graph are those of the uncut one: owners agree on a source without asking each other."""

import numpy as np
import pytest
from cut_and_sampled import KEY, assert_same_but_for_numbers, cut_at_random, plain_graph, typed_graph

from penstock.sampling.labor import Labor
from penstock.sampling.parts import OwnedPart, RemoteSampler, parted_labor, serve_batches
from penstock.wire.channel import RemoteError
from refusals import refused

SEEDS = np.array([7, 0, 299, 31, 150, 12])
FANOUTS = [4, -1, 3]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_here(tmp_path, parts):
    graph = plain_graph()
    partition = cut_at_random(graph, parts, tmp_path)
    parted = parted_labor(partition, FANOUTS).sample(partition.new_ids(SEEDS), KEY)
    assert_same_but_for_numbers(partition, parted, Labor(graph, FANOUTS).sample(SEEDS, KEY))


def test_parts_and_samplers_behind_the_wire(tmp_path, owners):
    graph = plain_graph()
    partition = cut_at_random(graph, 4, tmp_path)
    worker, channels, helper = owners(partition, "sampler-0")
    whole = Labor(graph, FANOUTS).sample(SEEDS, KEY)
    for local in ({}, {1: OwnedPart.of(partition, 1)}):
        sampler = parted_labor(partition, FANOUTS, local=local, channels=channels)
        assert_same_but_for_numbers(partition, sampler.sample(partition.new_ids(SEEDS), KEY), whole)
    serve_batches(helper, {"train": sampler})
    remote = RemoteSampler(
        [worker.channel("sampler-0", "batches")], "train", {"node": 300}, {"node": partition.original()}
    )
    assert_same_but_for_numbers(partition, remote.sample(partition.new_ids(SEEDS), KEY), whole)


def test_what_labor_does_not_do_is_refused(tmp_path, owners):
    with refused("unsupported-combination"):
        parted_labor(cut_at_random(typed_graph(), 2, tmp_path / "typed"), [2])
    partition = cut_at_random(plain_graph(), 2, tmp_path)
    with refused("value-out-of-range"):
        parted_labor(partition, [2, 0])
    worker, channels, helper = owners(partition, "sampler-0")
    serve_batches(helper, {"train": parted_labor(partition, [2], channels=channels)})
    remote = RemoteSampler([worker.channel("sampler-0", "batches")], "train", {"node": 300})
    with refused("unsupported-combination", RemoteError):
        remote.sample(SEEDS, KEY, exclude=np.empty((2, 0), np.int64))
