"""Samplers are entries of one registry: complete, honest about what they support, and extended by one file and line."""

from pathlib import Path

import numpy as np
import pytest

from penstock import PenstockError
from penstock.sampling.block import BatchKey
from penstock.sampling.entry import FEATURES, check_supported
from penstock.sampling.local_source import LocalSource
from penstock.sampling.parts import OwnedPart, parted_graph
from penstock.sampling.sampler_table import SAMPLERS, layer_count, sampler_facts
from penstock.train.batch_source import settings_of
from penstock.train.job import make_job
from refusals import refused
from training_graphs import community_graph, trained


def test_an_unknown_sampler_is_a_sentence():
    with refused("unknown-name labour labor"):
        SAMPLERS["labour"]


@pytest.mark.parametrize("name", SAMPLERS)
def test_facts_that_are_known_without_an_entry_are_the_entrys(name):
    assert sampler_facts(name) == SAMPLERS[name].facts


def test_what_an_entry_does_not_declare_is_refused():
    with refused("unsupported-combination time"):
        check_supported(SAMPLERS["labor"], {"time": "leave out `time`"})
    check_supported(SAMPLERS["neighbour"], dict.fromkeys(FEATURES, ""))


def test_layers_are_those_of_the_numbers_for_each_layer():
    assert layer_count(make_job({"graph": "g", "fanouts": [3, 2]}), 0) == 2
    assert layer_count(make_job({"graph": "g", "sampler": "ladies", "fanouts": [64]}), 1) == 1
    assert layer_count(make_job({"graph": "g", "sampler": "cluster"}), 0) == 2
    with refused("shape-mismatch 3 2"):
        layer_count(make_job({"graph": "g", "fanouts": [3, 2]}), 3)


class Parted:
    """A graph cut into parts, all of them in this process."""

    typed = False

    def __init__(self, partition):
        self._partition = partition

    def whole_lists(self, sampler):
        parts = {part: OwnedPart.of(self._partition, part) for part in range(self._partition.parts)}
        return parted_graph(self._partition, sampler, parts, None)


def test_a_new_sampler_is_one_file_and_one_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).with_name("parts"))
    from cut_and_sampled import assert_same_but_for_numbers, cut_at_random, plain_graph

    graph, seeds = plain_graph(), np.array([5, 17, 250])
    with SAMPLERS.added("first", "first_neighbours:FIRST"):  # the one line
        assert trained(community_graph(), tmp_path / "run", sampler="first").state == "finished"
        first, settings = SAMPLERS["first"], settings_of(make_job({"sampler": "first", "fanouts": [3, 2]}))
    with refused("invalid-document sampler first"):
        make_job({"sampler": "first"})
    partition = cut_at_random(graph, 3, tmp_path / "parts")
    whole = first.build(LocalSource(graph, seeds), settings).sample(seeds, BatchKey(0, 0, 0))
    parted = first.build(Parted(partition), settings).sample(partition.new_ids(seeds), BatchKey(0, 0, 0))
    parted.names = {"node": partition.original()[parted.vertices["node"]]}
    assert_same_but_for_numbers(partition, parted, whole)


def test_a_relation_that_no_hop_follows_is_never_opened():
    from penstock.graph.data import EdgeSet, NodeSet
    from penstock.graph.folder import Graph

    edges = {
        ("a", "to", "a"): EdgeSet(np.array([0, 1, 2]), np.array([1, 0], np.int32), {"w": np.ones(2, np.float32)}),
        ("a", "bare", "a"): EdgeSet(np.array([0, 1, 2]), np.array([1, 0], np.int32), {}),
    }
    graph = Graph({"a": NodeSet(2)}, edges, "two")
    job = make_job({"graph": "g", "fanouts": [{"a__to__a": 1}], "weight": "w"})
    lists = LocalSource(graph, np.arange(2)).lists(job).readable.relations
    assert list(lists) == list(edges) and lists["a", "to", "a"].weighted
    with pytest.raises(PenstockError):
        lists["a", "bare", "a"]
