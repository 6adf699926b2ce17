"""Which rows of a layer several workers compute: counted as by hand, whatever each of them has."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.worker.batch_norm import shared_batch, summing
from penstock.cluster.worker.worker_group import ClusterWorkerGroup
from penstock.nn import GraphSAGE, build_model, model_options
from penstock.nn.drop import dropping
from penstock.nn.norm import normalising
from penstock.sampling import BatchKey, NeighbourSampler, TypedNeighbourSampler
from training_graphs import community_graph, typed_graph

CPU, KEY = torch.device("cpu"), BatchKey(3, 1, 4)


class Gathering:
    """A group of threads."""

    device = CPU

    def __init__(self, world):
        self._barrier, self._given = threading.Barrier(world, timeout=20), [None] * world

    def of(self, rank):
        """As one of them sees it."""

        def gather(numbers):
            self._given[rank] = numbers
            self._barrier.wait()
            found = list(self._given)
            self._barrier.wait()
            return found

        def add(numbers):
            numbers.copy_(sum(gather(numbers.clone())))

        return SimpleNamespace(device=CPU, gather=gather, sum=add)


def session_of(sizes, time=None):
    """Whose model normalises so many rows of these types."""
    model = SimpleNamespace(normalised_rows=lambda blocks: sizes)
    return SimpleNamespace(model=model, job=SimpleNamespace(time=time), inputs=SimpleNamespace(device=CPU))


def shares_of(workers, time=None):
    """Every worker's shares; a worker is its sizes and its vertices by type."""
    gathering = Gathering(len(workers))

    def work(rank):
        sizes, inputs = workers[rank]
        batch = SimpleNamespace(blocks=None, vertices=inputs)
        return shared_batch(session_of(sizes, time), batch, gathering.of(rank), rank)._shares

    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(work, range(len(workers))))


@given(st.data())
def test_rows_are_counted_as_by_hand(data):
    world, names = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([["a"], ["a", "b"]]))
    rng, workers = np.random.default_rng(data.draw(st.integers(0, 999))), []
    for _ in range(world):
        inputs = {name: rng.permutation(12)[: rng.integers(0, 13)].astype(np.int32) for name in names}
        # Layers shrink towards the seeds; a type without rows may be missing.
        sizes = [(name, int(part * len(inputs[name]))) for part in (0.9, 0.6, 0.2) for name in names]
        workers.append((sizes, {name: these for name, these in inputs.items() if len(these) or len(names) == 1}))
    for rank, shares in enumerate(shares_of(workers)):
        for place, (weights, total) in enumerate(shares):
            have = []
            for sizes, inputs in workers:
                name, rows = sizes[place]
                have.append(inputs.get(name, np.empty(0, int))[:rows].tolist())
            assert weights.dtype == torch.float64
            assert weights.tolist() == [1 / sum(v in other for other in have) for v in have[rank]]
            assert total == len(set().union(*have))


def test_a_model_of_one_type_need_not_know_its_name():
    workers = [([("", 2)], {"paper": np.array([4, 7, 9])}), ([("", 1)], {"paper": np.array([7])})]
    (first,), (second,) = shares_of(workers)
    assert first[0].tolist() == [1.0, 0.5] and second[0].tolist() == [0.5] and first[1] == second[1] == 2


def test_rows_of_seeds_own_trees_are_nobody_elses():
    """Though the same vertices are in all of them."""
    workers = [([("", 2), ("", 1)], {"node": np.array([4, 4, 4])}), ([("", 3), ("", 0)], {"node": np.array([4, 4, 4])})]
    first, second = shares_of(workers, "t")
    assert [each[0].tolist() for each in first] == [[1.0, 1.0], [1.0]]
    assert [each[1] for each in first] == [each[1] for each in second] == [5, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "sage"},
        {"model": "gcn", "jump": "cat", "residual": True, "dropout": 0.3},
        {"model": "mlp"},
        {"model": "rgcn"},
    ],
    ids=lambda fields: fields["model"],
)
@pytest.mark.parametrize("cuts", [[0, 11, 24], [0, 0, 1, 24]])
def test_shares_of_a_batch_are_the_whole(fields, cuts):
    """Also where a worker has no seeds, or one."""
    torch.manual_seed(0)
    graph, options = community_graph(120), model_options(layers=3, hidden=6, norm="batch", **{"dropout": 0.0, **fields})
    sampler = NeighbourSampler(graph, [3, 2, 2], totals=True)
    seeds = np.random.default_rng(0).permutation(120)[:24]
    batches = [sampler.sample(seeds[first:last], KEY) for first, last in [(0, 24), *pairwise(cuts)]]
    given = [(batch, torch.from_numpy(graph.x[batch.vertices["node"]])) for batch in batches]
    assert_shared_as_whole(build_model(options, 4, 3), given[0], given[1:], lambda out: out)


@pytest.mark.parametrize("name", ["sage", "gat", "mlp"])
def test_shares_of_a_batch_of_several_types(name):
    """The second worker has an author without papers: of their type it has no row in the last layers."""
    torch.manual_seed(0)
    graph = typed_graph()
    options = model_options(model=name, layers=2, hidden=8, norm="batch", dropout=0.0, jump="max")
    model = build_model(options, {"paper": 3, "author": 4}, 3, list(graph.edges))
    sampler = TypedNeighbourSampler(graph, [{("author", "writes", "paper"): 2, ("paper", "cites", "paper"): 2}] * 2)
    seeds = [{"paper": np.arange(9), "author": np.arange(3)}, {"paper": np.arange(9)}, {"author": np.arange(3)}]
    rows = {"paper": graph.nodes["paper"].fields["x"], "author": np.random.default_rng(0).random((50, 4), np.float32)}
    given = []
    for these in seeds:
        batch = sampler.sample(these, KEY)
        x = {kind: torch.from_numpy(rows[kind][ids]) for kind, ids in batch.vertices.items() if len(ids)}
        given.append((batch, x))
    assert_shared_as_whole(model, given[0], given[1:], lambda out: torch.cat([out[kind] for kind in sorted(out)]))


def assert_shared_as_whole(model, whole, shares, rows_of):
    """The gradients of all weights together, and the running figures of each."""
    gathering, models = Gathering(len(shares)), [copy.deepcopy(model) for _ in shares]

    def work(rank):
        batch, x = shares[rank]
        session = SimpleNamespace(
            model=models[rank], job=SimpleNamespace(time=None), inputs=SimpleNamespace(device=CPU)
        )
        with normalising(shared_batch(session, batch, gathering.of(rank), rank)) as shared, dropped(batch):
            loss = rows_of(models[rank](batch.blocks, x)).square().sum()
        shared.joined(loss).backward()
        return loss.item()

    with ThreadPoolExecutor(len(shares)) as pool:
        losses = list(pool.map(work, range(len(shares))))
    with dropped(whole[0]):
        loss = rows_of(model(whole[0].blocks, whole[1])).square().sum()
    loss.backward()
    assert sum(losses) == pytest.approx(loss.item(), rel=1e-4)
    for each, *others in zip(model.parameters(), *(other.parameters() for other in models), strict=True):
        found = [other.grad for other in others if other.grad is not None]
        assert (each.grad is None) == (not found)
        if found:
            torch.testing.assert_close(sum(found), each.grad, rtol=2e-3, atol=1e-3)
    for other in models:
        for (name, expected), value in zip(model.named_buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-5, msg=name)


def dropped(batch):
    """What the batch's vertices lose."""
    return dropping(KEY.purpose("dropout"), batch.row_names)


def test_a_model_without_such_norms_tells_nobody_anything():
    batch = SimpleNamespace(blocks=[], vertices={})
    for model in (SimpleNamespace(), SimpleNamespace(normalised_rows=lambda blocks: [])):
        assert shared_batch(SimpleNamespace(model=model), batch, None, 0) is None


def test_sums_of_numbers_that_are_elsewhere():
    """The group adds up where it can."""
    seen = []

    def double(numbers):
        seen.append(numbers.device)
        numbers.mul_(2)

    add = summing(SimpleNamespace(device=CPU, sum=double))
    numbers = torch.ones(3)
    add(numbers)
    assert numbers.tolist() == [2.0, 2.0, 2.0] and seen == [CPU]


def test_running_figures_of_a_module_of_ones_own_are_the_mean_of_all_workers():
    """Those of a zoo's model are the same everywhere already."""

    def triple(numbers):
        numbers.mul_(3)

    team = object.__new__(ClusterWorkerGroup)
    team.world, team.reduction = 2, SimpleNamespace(group=SimpleNamespace(device=CPU, sum=triple))
    for model, expected in ((torch.nn.BatchNorm1d(2), 1.5), (GraphSAGE(3, 2, hidden=2, layers=2, norm="batch"), 1.0)):
        learned = torch.nn.ModuleDict({"model": model})
        team._share_figures(SimpleNamespace(model=model, learned=learned))
        found = [value for name, value in learned.named_buffers() if name.endswith("running_var")]
        assert found and all(value.tolist() == [expected] * 2 for value in found)
