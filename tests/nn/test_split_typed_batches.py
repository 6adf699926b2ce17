"""A batch of several node types computed in parts: with dropout every seed has the outputs that it has in the whole."""

import numpy as np
import pytest
import torch

from penstock import Graph, NodeSet
from penstock.nn import build_model
from penstock.nn.drop import drop, dropping, skip_drop
from penstock.nn.layer_table import model_options
from penstock.partition import Cut, cut, open_partition
from penstock.sampling import BatchKey, TypedNeighbourSampler
from penstock.sampling.device.block import on_device
from penstock.sampling.parts import parted_sampler
from training_graphs import lists_of, typed_graph

KEY = BatchKey(3, 1, 4)
WIDTHS = {"paper": 3, "author": 5, "prize": 2}
MODELS = {
    "sage": {"model": "sage", "dropout": 0.4, "input_dropout": 0.2},
    "sage, elu, residual": {"model": "sage", "dropout": 0.4, "activation": "elu", "residual": True, "norm": "layer"},
    "rgcn, bases, all layers": {"model": "rgcn", "bases": 2, "dropout": 0.4, "jump": "cat"},
    "rgcn, blocks": {"model": "rgcn", "blocks": 3, "dropout": 0.4},
    "mlp": {"model": "mlp", "dropout": 0.4, "input_dropout": 0.2},
    "gat": {"model": "gat", "heads": 2, "dropout": 0.4, "attention_dropout": 0.3, "input_dropout": 0.2},
    "gatv2": {"model": "gatv2", "heads": 2, "dropout": 0.4, "attention_dropout": 0.3},
    "hgt": {"model": "hgt", "heads": 2, "dropout": 0.4, "attention_dropout": 0.3},
}


def graph_with_prizes() -> Graph:
    """Prizes are for papers 0 to 4 alone, so that a part of a batch may have neither the type nor its relations.

    Their type and relations come first: a part that did not count their calls of dropout would number all others
    otherwise than the whole does.
    """
    graph = typed_graph()
    rng = np.random.default_rng(5)
    papers, authors = graph.nodes["paper"].count, graph.nodes["author"].count
    nodes = {"prize": NodeSet(6), **graph.nodes}
    for name, width in WIDTHS.items():
        nodes[name].fields["x"] = rng.normal(0, 1, (nodes[name].count, width)).astype(np.float32)
    edges = {
        ("prize", "for", "paper"): lists_of([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], 6, papers),
        ("author", "gives", "prize"): lists_of([1, 2, 3, 4], [0, 0, 1, 2], authors, 6),
    }
    return Graph(nodes, {**edges, **graph.edges}, "papers")


@pytest.mark.parametrize("name", MODELS)
def test_halves_are_the_whole(name):
    assert_halves_are_the_whole(name, None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sage", "rgcn, bases, all layers", pytest.param("gat", marks=pytest.mark.long)])
def test_halves_are_the_whole_on_a_device(name, device):
    assert_halves_are_the_whole(name, device)


def assert_halves_are_the_whole(name, device):
    """The second half has no prizes, and its vertices stand in other rows than in the whole."""
    torch.manual_seed(0)
    graph = graph_with_prizes()
    sampler = TypedNeighbourSampler(graph, [3, 2], totals=True)
    options = model_options(layers=2, hidden=12, **MODELS[name])
    model = build_model(options, {each: WIDTHS[each] for each in graph.nodes}, 3, list(graph.edges), "paper")
    without = [i for i in range(5, 150) if not len(sampler.sample({"paper": np.array([i])}, KEY).vertices["prize"])]
    seeds = np.concatenate([np.arange(12), np.setdiff1d(without, np.arange(12))[:12]])
    batches = [sampler.sample({"paper": part}, KEY) for part in (seeds, seeds[:12], seeds[12:])]
    assert len(batches[0].vertices["prize"]) and not len(batches[2].vertices["prize"])
    expected, gradients = computed(model, graph, batches[0], None)
    parts = [computed(model, graph, batch, device) for batch in batches[1:]]
    torch.testing.assert_close(torch.cat([out for out, _ in parts]), expected, rtol=1e-4, atol=1e-5)
    for whole, *halves in zip(gradients, *(grads for _, grads in parts), strict=True):
        torch.testing.assert_close(sum(halves), whole, rtol=1e-4, atol=1e-4)
    # Masks that went by place would show.
    misnamed, _ = computed(model, graph, batches[2], device, {each: np.arange(150) for each in graph.nodes})
    assert (misnamed - expected[12:]).abs().max() > 0.01


def computed(model, graph, batch, device, names=None):
    """Outputs of the papers and gradients, on the host's kernels or a device's; zeros where there is no gradient."""
    key, names, blocks = KEY.purpose("dropout"), names or batch.row_names, batch.blocks
    x = {each: torch.from_numpy(graph.nodes[each].fields["x"][rows]) for each, rows in batch.vertices.items()}
    # As where types have features of different kinds: the order of the rows says nothing, nor that a type has none.
    x = {each: rows for each, rows in sorted(x.items()) if len(rows)}
    if device is not None:
        model, x, blocks = model.to(device), {each: rows.to(device) for each, rows in x.items()}, on(blocks, device)
        key = torch.from_numpy(np.array([key], np.uint64).view(np.int64)).to(device)
    with dropping(key, names):
        out = model(blocks, x)["paper"]
    grads = torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True, materialize_grads=True)
    model.cpu()
    return out.detach().cpu(), [grad.cpu() for grad in grads]


def on(blocks, device):
    """Blocks on a device."""
    return [on_device(block, device) for block in blocks]


def test_types_draw_apart_and_a_call_without_rows_is_counted():
    """Vertices of two types with the same numbers lose different numbers, whether both types are there or one."""
    names, ones = {"paper": np.arange(40), "author": np.arange(40)}, torch.ones(40, 10)
    with dropping(7, names):
        papers, authors = drop(ones, 0.5, "paper"), drop(ones, 0.5, "author")
    assert not torch.equal(papers, authors)
    with dropping(7, {"author": np.arange(40)[::-1]}):
        skip_drop(0.5)
        assert torch.equal(drop(ones, 0.5, "author"), authors.flip(0))


@pytest.mark.parametrize("parts", [2, 4])
def test_a_cut_graph_names_vertices_by_their_original_numbers(tmp_path, parts):
    torch.manual_seed(0)
    saved = graph_with_prizes().save(tmp_path / "graph")
    cut(saved, Cut(parts, 1, "random"), tmp_path / "parts")
    partition = open_partition(tmp_path / "parts")
    whole = TypedNeighbourSampler(saved, [3, 2]).sample({"paper": np.arange(20)}, KEY)
    assert whole.row_names is whole.vertices
    sampler = parted_sampler(partition, [3, 2])
    batch = sampler.sample({"paper": partition.new_ids(np.arange(20), "paper")}, KEY)
    for each, names in batch.row_names.items():
        assert set(names) == set(whole.vertices[each])
        assert np.array_equal(partition.original(each)[batch.vertices[each]], names)
    options = model_options(layers=2, hidden=12, model="sage", dropout=0.4, input_dropout=0.2)
    model = build_model(options, {each: WIDTHS[each] for each in saved.nodes}, 3, list(saved.edges), "paper")
    expected, _ = computed(model, saved, whole, None)
    batch.vertices = batch.row_names
    torch.testing.assert_close(computed(model, saved, batch, None)[0], expected, rtol=1e-4, atol=1e-5)
