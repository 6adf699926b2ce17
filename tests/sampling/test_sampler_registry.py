"""Samplers are entries of one registry: complete, honest about what they support, and extended by one file and line."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock import PenstockError
from penstock.sampling.registry import FEATURES, SAMPLERS, check_supported, layer_count, sampler_entry
from penstock.train.job import make_job
from refusals import refused

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_entry_is_complete(name):
    entry = sampler_entry(name)
    assert entry.name == name
    assert entry.supports <= set(FEATURES)
    options = make_job({"graph": "g", "sampler": name})
    assert entry.per_layer is None or getattr(options, entry.per_layer)
    assert entry.items_per_batch is None or entry.items_per_batch(options) >= 1


def test_an_unknown_sampler_is_a_sentence():
    with refused("unknown-name labour labor"):
        sampler_entry("labour")


def test_what_an_entry_does_not_declare_is_refused():
    with refused("unsupported-combination time"):
        check_supported(sampler_entry("labor"), {"time": "leave out `time`"})
    check_supported(sampler_entry("neighbour"), dict.fromkeys(FEATURES, ""))


def test_layers_are_those_of_the_numbers_for_each_layer():
    assert layer_count(make_job({"graph": "g", "fanouts": [3, 2]}), 0) == 2
    assert layer_count(make_job({"graph": "g", "sampler": "ladies", "fanouts": [64]}), 1) == 1
    assert layer_count(make_job({"graph": "g", "sampler": "cluster"}), 0) == 2
    with refused("shape-mismatch 3 2"):
        layer_count(make_job({"graph": "g", "fanouts": [3, 2]}), 3)


_WITH_A_NEW_SAMPLER = r"""
import sys
from pathlib import Path

import numpy as np

from importlib.util import find_spec, module_from_spec

import penstock.sampling

# The registry with one line more in its table.
spec = find_spec("penstock.sampling.registry")
head, table, rest = Path(spec.origin).read_text().partition("SAMPLERS = {\n")
penstock.sampling.registry = sys.modules[spec.name] = module_from_spec(spec)
line = '    "first": "first_neighbours:FIRST",\n'
exec(compile(head + table + line + rest, spec.origin, "exec"), penstock.sampling.registry.__dict__)

from cut_and_sampled import assert_same_but_for_numbers, cut_at_random, plain_graph
from penstock.sampling.block import BatchKey
from penstock.sampling.parts import OwnedPart, parted_graph
from penstock.train.batch_source import settings_of
from penstock.train.job import make_job
from training_graphs import SMALL, community_graph, trained

run = trained(community_graph(), Path(sys.argv[1]) / "run", sampler="first")
assert run.state == "finished"

from first_neighbours import FIRST
from penstock.sampling.local_source import LocalSource

class Parted:
    typed = False
    def __init__(self, partition):
        self._partition = partition
    def whole_lists(self, sampler):
        parts = {part: OwnedPart.of(self._partition, part) for part in range(self._partition.parts)}
        return parted_graph(self._partition, sampler, parts, None)

graph, seeds = plain_graph(), np.array([5, 17, 250])
partition = cut_at_random(graph, 3, Path(sys.argv[1]) / "parts")
settings = settings_of(make_job({"graph": "g", "sampler": "first", "fanouts": [3, 2]}))
whole = FIRST.build(LocalSource(graph, seeds), settings).sample(seeds, BatchKey(0, 0, 0))
parted = FIRST.build(Parted(partition), settings).sample(partition.new_ids(seeds), BatchKey(0, 0, 0))
parted.names = {"node": partition.original()[parted.vertices["node"]]}
assert_same_but_for_numbers(partition, parted, whole)
"""


def test_a_new_sampler_is_one_file_and_one_line(tmp_path):
    folders = [TESTS, TESTS / "sampling", TESTS / "sampling" / "parts"]
    paths = f"import sys; sys.path[:0] = {[str(folder) for folder in folders]!r}\n"
    script = tmp_path / "script.py"
    script.write_text(paths + _WITH_A_NEW_SAMPLER)
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_relation_that_no_hop_follows_is_never_opened():
    from penstock.graph.data import EdgeSet, NodeSet
    from penstock.graph.graph import Graph
    from penstock.sampling.local_source import LocalSource

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
