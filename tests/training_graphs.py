"""Small graphs that can be learned, and how tests train on them and look at what came of it."""

import contextlib
import copy
import functools
import json
import sys
import threading
from pathlib import Path

import numpy as np
import torch

from penstock import EdgeSet, Graph, NodeSet
from penstock.api import train
from penstock.graph.csr import build_lists
from penstock.partition import Cut, cut
from penstock.train.internals import Internals
from penstock.train.job import make_job
from penstock.train.run_files.checkpoints import read_best, read_state

SMALL = {"fanouts": [4, 3], "hidden": 16, "batch_size": 16, "epochs": 2, "checkpoint_minutes": 0, "threads": 1}
"""Seconds are for the graph, not for the model."""

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]


def community_graph(count=200, classes=4, degree=6, features=True, seed=0, **more):
    """Vertices in communities, mostly linked inside them; features say a little of the community, links the rest."""
    y, splits, x, links = copy.deepcopy(_communities(count, classes, degree, features, seed))
    nodes = NodeSet(count, {"y": y, **more.pop("fields", {})}, splits, **more)
    if features:
        nodes.fields["x"] = x
    return Graph({"node": nodes}, {("node", "to", "node"): links}, "communities")


@functools.cache
def _communities(count, classes, degree, features, seed):
    """Classes, splits, features and links of a community graph: drawn once, as hundreds of tests take the same."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count)
    splits = _splits(rng, count)
    x = (np.eye(classes)[y] + rng.normal(0, 1.5, (count, classes))).astype(np.float32) if features else None
    return y, splits, x, _links(rng, y, degree)


def stored_as(dtype, count=400):
    """A community graph whose features are stored as numbers of a type."""
    graph = community_graph(count)
    (nodes,) = graph.nodes.values()
    nodes.fields["x"] = (nodes.x * (8 if dtype == np.int8 else 1)).astype(dtype)
    return graph


def typed_graph(count=150, classes=3, seed=0):
    """Papers with features and labels; authors of them without features, who write within a class."""
    return Graph(*copy.deepcopy(_papers(count, classes, seed)), "papers")


@functools.cache
def _papers(count, classes, seed):
    """Vertices and edges of a typed graph, drawn once."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count)
    x = (np.eye(classes)[y] + rng.normal(0, 1.5, (count, classes))).astype(np.float32)
    authors = count // 3
    field = np.arange(authors) % classes
    src = np.array([rng.choice(np.flatnonzero(field == c)) for c in np.repeat(y, 2)])
    dst = np.repeat(np.arange(count), 2)
    nodes = {"paper": NodeSet(count, {"x": x, "y": y}, _splits(rng, count)), "author": NodeSet(authors)}
    edges = {("author", "writes", "paper"): lists_of(src, dst, authors, count)}
    edges["paper", "by", "author"] = lists_of(dst, src, count, authors)
    edges["paper", "cites", "paper"] = _links(rng, y, 4)
    return nodes, edges


def carrying_graph(seed=0):
    """Communities whose edges have a weight that tells whether both ends are of one class, and features."""
    graph = community_graph(120, degree=5, seed=seed)
    ((kind, edges),) = graph.edges.items()
    rng, y = np.random.default_rng(seed), graph.nodes["node"].fields["y"]
    targets = np.repeat(np.arange(len(y)), np.diff(edges.indptr))
    alike = y[edges.indices] == y[targets]
    fields = {
        "edge_weight": np.where(alike, 2.0, 0.25).astype(np.float32),
        "edge_attr": np.stack([alike, rng.random(len(alike)), rng.random(len(alike))], 1).astype(np.float16),
        "far": rng.random(len(alike)),
    }
    return Graph(graph.nodes, {kind: EdgeSet(edges.indptr, edges.indices, fields)}, "carrying")


def labelled_edges():
    """A symmetric graph whose edges tell whether both ends are of one class."""
    graph = community_graph(degree=3)
    (kind,) = graph.edges
    lists, y = graph.edges[kind], graph.nodes["node"].fields["y"]
    targets = np.repeat(np.arange(len(y)), np.diff(lists.indptr))
    same = (y[lists.indices] == y[targets]).astype(np.int64)
    return Graph(graph.nodes, {kind: EdgeSet(lists.indptr, lists.indices, {"kind": same})}, "pairs")


def numbered_edges(field="score"):
    """A symmetric graph whose edges have a number that both ends' features tell; some have none (NaN)."""
    graph = community_graph(degree=3)
    (kind,) = graph.edges
    lists, x = graph.edges[kind], graph.nodes["node"].fields["x"]
    targets = np.repeat(np.arange(len(x)), np.diff(lists.indptr))
    numbers = (x[lists.indices] * x[targets]).sum(1).astype(np.float32)
    unknown = (lists.indices.astype(np.int64) + targets) % 29 == 0
    return Graph(
        graph.nodes,
        {kind: EdgeSet(lists.indptr, lists.indices, {field: np.where(unknown, np.nan, numbers).astype(np.float32)})},
        "numbers",
    )


def scattered_ring(count=200, scattered=True):
    """A ring whose vertices are numbered at random: in the order of numbers neighbours are far apart."""
    rng = np.random.default_rng(4)
    number = rng.permutation(count) if scattered else np.arange(count)
    left, right = number, np.roll(number, 1)
    edges = lists_of(np.concatenate([left, right]), np.concatenate([right, left]), count, count)
    y = (np.argsort(number) * 4 // count).astype(np.int64)
    x = (np.eye(4)[y] + rng.normal(0, 1, (count, 4))).astype(np.float32)
    nodes = NodeSet(count, {"x": x, "y": y}, {"train": np.arange(0, count, 2), "val": np.arange(1, count, 2)})
    return Graph({"node": nodes}, {("node", "to", "node"): edges}, "ring")


def lists_of(src, dst, sources, destinations, **fields):
    """Edges as neighbour lists, fields along."""
    indptr, indices, order = build_lists(np.asarray(src), np.asarray(dst), sources, destinations, True)
    return EdgeSet(indptr, indices, {name: np.asarray(values)[order] for name, values in fields.items()})


def clusters_by_number(graph, count, folder):
    """A partition folder for the job field `clusters`: each has consecutive vertex numbers, so that no partitioner need
    be installed."""
    cut(graph, Cut(count, method="chunk", balance=("vertices",)), folder)
    return str(folder)


def trained(graph, run, **fields):
    """A small run in a folder of its own; `fields` may be internals too."""
    own = {name: value for name, value in fields.items() if name in Internals.model_fields}
    asked = {name: value for name, value in {**SMALL, **fields}.items() if name not in own}
    return train(graph, run=str(run), **asked, **({"job": make_job({}, internals=own)} if own else {}))


class InterruptAfter:
    """Stands for penstock.processes.polite_interrupt: an interrupt that is heard at the n-th question."""

    def __init__(self, questions):
        self.left = questions

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def __call__(self):
        self.left -= 1
        return self.left <= 0


def newest_checkpoint(run):
    """Everything the last checkpoint holds."""
    return read_state(max((Path(run) / "checkpoints").glob("step-*.ckpt")))


def best_checkpoint(run):
    """The best model as it was kept."""
    return read_best(Path(run) / "checkpoints")


def assert_same_state(a, b, where="state"):
    """Equal bit for bit, names and all; seconds are left out."""
    if isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            if key not in ("elapsed", "epoch_elapsed", "epoch_seconds"):
                assert_same_state(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same_state(left, right, f"{where}[{i}]")
    elif hasattr(a, "shape"):
        assert a.dtype == b.dtype, where
        assert _bytes(a) == _bytes(b), where
    else:
        assert a == b or (a != a and b != b), where


def same_state(a, b):
    """Whether two checkpoints are equal bit for bit."""
    try:
        assert_same_state(a, b)
    except AssertionError:
        return False
    return True


def lines_of(run, name="metrics.jsonl"):
    """The records of a run's log."""
    return [json.loads(line) for line in (Path(run) / name).read_text().splitlines()]


def facts_of(run):
    """run.json, which must be JSON by the letter: no NaN."""
    return json.loads((Path(run) / "run.json").read_text(), parse_constant=_refuse)


def stage_threads():
    """Threads of pipelines that are still there."""
    stages = ("seeds-", "sample-", "gather-", "transfer-", "source-", "read-")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(stages)]


def open_files():
    """Descriptors of this process, by what they stand for."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return sorted(path for path in found if not path.startswith("/proc/"))


def _bytes(values):
    """bfloat16 is not known to NumPy; its bits are."""
    return np.asarray(values.view(torch.int16) if values.dtype == torch.bfloat16 else values).tobytes()


def _refuse(word):
    raise ValueError(f"{word} is no JSON")


def _splits(rng, count):
    order = rng.permutation(count)
    cuts = np.split(order, [count // 2, count * 3 // 4])
    return {name: np.sort(part) for name, part in zip(("train", "val", "test"), cuts, strict=True)}


def _links(rng, y, degree):
    src, dst = [], []
    members = {kind: np.flatnonzero(y == kind) for kind in np.unique(y)}
    for v, kind in enumerate(y):
        inside = rng.choice(members[kind], degree)
        outside = rng.integers(0, len(y), 1)
        for u in [*inside, *outside]:
            src += [u, v]
            dst += [v, u]
    pairs = np.unique(np.stack([src, dst]), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    return lists_of(pairs[0], pairs[1], len(y), len(y))
