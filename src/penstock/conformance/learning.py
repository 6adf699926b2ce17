"""Checks of what is trained: samplers, layers, scorers, tasks, partitioning methods, execution modes, callbacks."""

from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from penstock.api import train
from penstock.conformance.systems import require
from penstock.graph.arrays import Array
from penstock.graph.csr import build_lists
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.graph.schema import TASK_FACTS, TaskFacts
from penstock.nn.layer_table import LAYERS, model_options
from penstock.nn.layers.entry import LayerEntry
from penstock.nn.scorers import RelationScorer, ScorerSettings
from penstock.partition.problem import Method, Problem, constraints_of, default_names, whole_of
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Batch
from penstock.sampling.block import Block
from penstock.sampling.entry import FEATURES, SamplerEntry, plain_fanouts
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.batch_source import BatchSource, make_batch_source
from penstock.train.build import make_session
from penstock.train.execution_modes import EXECUTION_MODES, ExecutionMode
from penstock.train.first_layer.ways import WAYS, FirstLayerWay
from penstock.train.job import Job, make_job
from penstock.train.metrics import Metric
from penstock.train.tasks import TASKS, TaskEntry

_COUNT, _CLASSES, _WIDTH = 120, 3, 8
_FEW: dict[str, Any] = {
    "fanouts": [4, 3],
    "clusters": 4,
    "hidden": 8,
    "batch_size": 16,
    "epochs": 2,
    "threads": 1,
    "device": "cpu",
    "checkpoint_minutes": 0,
}


def small_graph(seed: int = 0) -> Graph:
    """A graph of one relation whose vertices have communities, features, labels and splits."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, _CLASSES, _COUNT)
    features = rng.normal(0, 1, (_COUNT, _WIDTH)).astype(np.float32)
    features[np.arange(_COUNT), labels] += 1
    thirds = np.split(rng.permutation(_COUNT), 3)
    splits = {name: np.sort(rows) for name, rows in zip(("train", "val", "test"), thirds, strict=True)}
    ends = rng.integers(0, _COUNT, (2, _COUNT * 6))
    edges = EdgeSet(*build_lists(ends[0], ends[1], _COUNT, _COUNT)[:2])
    nodes = NodeSet(_COUNT, {"x": features, "y": labels}, splits)
    return Graph({"node": nodes}, {("node", "to", "node"): edges}, "small")


# Samplers.


def check_sampler(entry: SamplerEntry, exact: bool = True, **options: Any) -> None:
    """Check that equal keys give equal draws on any thread, seeds come first, and edges are the graph's, within
    fan-outs.

    `exact` says whether a vertex never has more neighbours than its hop's fan-out, as samplers with fan-outs promise;
    LABOR keeps to them on average. `options` are fields of a job. Of a sampler that draws by where parts lie (`local`)
    only the declarations are checked.
    """
    require(entry.supports <= set(FEATURES), f"{entry.name} declares {entry.supports - set(FEATURES)}, not FEATURES")
    graph = small_graph()
    with SAMPLERS.added(entry.name, entry):
        job = make_job({**_FEW, "sampler": entry.name, **options})
    require(entry.per_layer is None or hasattr(job, entry.per_layer), f"a job has no field {entry.per_layer!r}")
    if entry.items_per_batch is not None:
        require(entry.items_per_batch(job) >= 1, "items_per_batch gives less than one item")
    if entry.local or not entry.makes_batches:
        return
    source, again = (_batches(entry, job, graph) for _ in range(2))
    planned = _planned(source)
    drawn = [_draw(source, each) for each in planned]
    for each, batch in zip(planned, drawn, strict=True):
        _check_batch(entry, job, graph, each, batch, exact)
        require(_alike(batch, _draw(source, each)), "the same batch was drawn twice and differs")
        require(_alike(batch, _draw(again, each)), "a sampler that was built again draws another batch")
    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(lambda each: _draw(source, each), planned))
    require(all(map(_alike, drawn, beside)), "batches that threads draw at once differ from those drawn in turn")


def _batches(entry: SamplerEntry, job: Job, graph: Graph) -> BatchSource:
    with SAMPLERS.added(entry.name, entry):
        return make_batch_source(job, graph, np.asarray(graph.nodes["node"].splits["train"]))


def _planned(source: BatchSource) -> list[Planned]:
    schedule = Schedule(source.items, source.batch_size, 0, 2)
    return list(schedule.from_position(Position(0, 0)))


def _draw(source: BatchSource, planned: Planned) -> Batch:
    return source.sample({"node": planned.seeds}, planned)


def _check_batch(entry: SamplerEntry, job: Job, graph: Graph, planned: Planned, batch: Batch, exact: bool) -> None:
    vertices, seeds = batch.vertices["node"], batch.seeds["node"]
    require(len(np.unique(vertices)) == len(vertices), "a vertex has two rows in one batch")
    require(np.array_equal(vertices[: len(seeds)], seeds), "a batch's vertices do not start with its seeds")
    if entry.items_per_batch is None:
        require(set(seeds) == set(planned.seeds), "a batch has other seeds than it was asked for")
    edges = {(int(u), v) for v in range(_COUNT) for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]}
    blocks: list[Block] = [part for block in batch.blocks for part in block.parts]
    for hop, part in enumerate(reversed(blocks)):
        require(part.num_src <= len(vertices), "a block reads rows that the batch does not have")
        require(part.num_dst <= part.num_src, "a block writes more rows than it reads")
        pairs = zip(vertices[part.indices], vertices[part.destinations()], strict=True)
        require(all((int(u), int(v)) in edges for u, v in pairs), "a drawn edge is not in the graph")
        # A joint draw's numbers count the vertices that all rows share, which a list may reach by several edges.
        if exact and entry.per_layer == "fanouts" and not entry.joint:
            longest = int(np.diff(part.indptr).max(initial=0))
            require(longest <= plain_fanouts(job)[hop], "a list exceeds its hop's fan-out")


def _alike(one: Batch, other: Batch) -> bool:
    """Whether two batches have the same vertices and edges in the same rows."""
    parts = [[part for block in batch.blocks for part in block.parts] for batch in (one, other)]
    same = [np.array_equal(a.indptr, b.indptr) and np.array_equal(a.indices, b.indices) for a, b in zip(*parts)]  # noqa: B905
    weights = [
        (a.weights is None and b.weights is None) or np.array_equal(a.weights, b.weights)
        for a, b in zip(*parts)  # noqa: B905
    ]
    return all(map(np.array_equal, one.vertices.values(), other.vertices.values())) and all(same) and all(weights)


# Layers and scorers.

_RELATIONS = (("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "written-by", "author"))


def check_layer(entry: LayerEntry, **options: Any) -> None:
    """Check the outputs' width, gradients of all weights and inputs, and that the order of neighbours does not matter.

    The layer is built for graphs of one type and of several, as far as the entry declares both.
    """
    require(entry.build is not None or entry.build_typed is not None, f"{entry.name} can be built for no graph")
    with LAYERS.added(entry.name, entry):
        chosen = model_options(
            **{"model": entry.name, "heads": 2, "hidden": 6, "edge_width": _edge_width(entry), **options}
        )
    for last in (False, True):
        if entry.build is not None:
            block, rows = _block(chosen.edge_width), torch.randn(9, 5, generator=_generator())
            _check_rows(entry.build(chosen, 5, 6, last), block, {"": rows}, _reordered(block), 6)
        if entry.build_typed is not None:
            typed, other = _typed_block(_block()), _typed_block(_reordered(_block()))
            rows_of = {name: torch.randn(9, 5, generator=_generator()) for name in ("paper", "author")}
            _check_rows(
                entry.build_typed(chosen, 5, 6, ("paper", "author"), _RELATIONS, last), typed, rows_of, other, 6
            )


def _edge_width(entry: LayerEntry) -> int:
    return 3 if entry.edge_features == "needed" else 0


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _block(edge_width: int = 0) -> Block:
    """A block of four destination rows that read nine rows; one of them reads nothing."""
    indptr, indices = np.array([0, 3, 5, 5, 9]), np.array([4, 5, 6, 0, 7, 1, 8, 4, 2], np.int32)
    block = Block(indptr, indices, 9, totals=np.array([3.0, 2, 0, 4, 1, 1, 1, 1, 1], np.float32))
    if edge_width:
        block.edge_attr = torch.randn(9, edge_width, generator=_generator())
    return block


def _reordered(block: Block) -> Block:
    """The block with each list reversed."""
    order = np.concatenate([np.arange(a, b)[::-1] for a, b in zip(block.indptr, block.indptr[1:], strict=False)])
    other = Block(block.indptr, block.indices[order], block.num_src, totals=block.totals)
    if block.edge_attr is not None:
        other.edge_attr = block.edge_attr[torch.from_numpy(order.copy())]
    return other


def _typed_block(block: Block) -> Block:
    counts = {"paper": 9, "author": 9}, {"paper": 4, "author": 4}
    return Block.of_relations(dict.fromkeys(_RELATIONS, block), *counts)


def _check_rows(layer: torch.nn.Module, block: Any, rows: dict[str, torch.Tensor], other: Any, width: int) -> None:
    layer.eval()
    given = {name: each.clone().requires_grad_() for name, each in rows.items()}
    out = _called(layer, block, given)
    require(out.shape == (len(rows), 4, width), f"a layer of width {width} gives {tuple(out.shape[1:])} for 4 rows")
    require(bool(torch.isfinite(out).all()), "a layer gives numbers that are not finite")
    torch.autograd.backward(out.square().sum())
    require(all(each.grad is not None for each in given.values()), "a layer's inputs have no gradient")
    missing = [name for name, weight in layer.named_parameters() if weight.grad is None]
    require(not missing, f"weights {missing} have no gradient")
    again = _called(layer, other, {name: each.clone() for name, each in rows.items()})
    require(torch.allclose(out, again, atol=1e-5), "a layer's outputs depend on the order of a vertex's neighbours")


def _called(layer: torch.nn.Module, block: Any, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """The rows that a layer computes for the destinations of one type."""
    out: Any = layer(block, rows.get("", rows))
    return torch.stack([out] if isinstance(out, torch.Tensor) else list(out.values()))


def check_scorer(scorer: Any, width: int = 8, relations: int = 3) -> None:
    """Check that each pair gets one number with gradients; queries of a `RelationScorer` must agree with scores of
    pairs.
    """
    built: torch.nn.Module = scorer.build(width, relations, ScorerSettings())
    source, destination = torch.randn(2, 6, width, generator=_generator()).requires_grad_().unbind(0)
    kinds = torch.arange(6) % relations
    scores = built(source, destination, kinds)
    require(scores.shape == (6,), f"six pairs have scores of shape {tuple(scores.shape)}")
    torch.autograd.backward(scores.sum())
    require(all(weight.grad is not None for weight in built.parameters()), "a scorer's weights have no gradient")
    alone = torch.cat([built(source[k : k + 1], destination[k : k + 1], kinds[k : k + 1]) for k in range(6)])
    require(torch.allclose(scores, alone, atol=1e-5), "a pair's score depends on the other pairs of the batch")
    if isinstance(built, RelationScorer):
        queries = built.query(source, kinds, "destination")
        compared = built.compare(queries, destination).diagonal()
        require(torch.allclose(scores, compared, atol=1e-4), "queries have other scores than pairs")


# Partitioning methods.


def check_partitioner(method: Method, parts: int = 4, repeats: bool = True) -> None:
    """Check that every vertex gets one of K parts, none is empty, and (`repeats`) the same problem
    has the same answer.
    """
    whole = whole_of(small_graph())
    problem = Problem(whole, parts, constraints_of(whole, default_names(whole)))
    found = np.asarray(method(problem))
    require(found.shape == (whole.count,), f"{whole.count} vertices have {found.shape} parts")
    require(found.dtype == np.int32, f"parts are {found.dtype}, where int32 is read")
    require(bool(((found >= 0) & (found < parts)).all()), f"a part is not one of 0 to {parts - 1}")
    require(len(np.unique(found)) == parts, "a part has no vertices")
    require(not repeats or np.array_equal(found, method(problem)), "the same problem has two answers")


# What trains: tasks, execution modes, ways of reading inputs, callbacks.


def check_task(name: str, entry: TaskEntry, graph: Graph | None = None, **fields: Any) -> None:
    """Check that a run of the task ends with finite losses, the same ones twice, and that its metric gives a value."""
    with TASKS.added(name, entry), TASK_FACTS.added(name, entry.facts):
        losses, scores = _trained(graph or small_graph(), {**fields, "task": name})
        again, _ = _trained(graph or small_graph(), {**fields, "task": name})
    require(losses == again, "two runs of one job have other losses")
    require(bool(scores), "the task's metric judges no split")


def check_metric(metric: Metric) -> None:
    """Check that a metric is a finite number, whatever the order of rows, and that nothing is better than right
    predictions.
    """
    facts = [TASK_FACTS[name] for name in metric.tasks()]
    require(bool(facts), f"metric {metric.name} is for no task")
    for each in facts:
        right, wrong, labels = _judged(metric, each)
        best, other = metric.compute(right, labels), metric.compute(wrong, labels)
        require(bool(np.isfinite([best, other]).all()), f"metric {metric.name} is not finite: {best}, {other}")
        require(metric.is_better(best, metric.worst), f"{best} is no better than the worst value, {metric.worst}")
        require(not metric.is_better(other, best), f"wrong predictions have {other}, and right ones {best}")
        turned = metric.compute(wrong[::-1].copy(), labels[::-1].copy())
        require(
            bool(np.isclose(other, turned)), f"metric {metric.name} depends on the order of rows: {other}, {turned}"
        )


def _judged(metric: Metric, task: TaskFacts) -> tuple[Array, Array, Array]:
    """Right and wrong predictions of a task as the metric takes them, and the labels."""
    rows = 12
    if metric.takes == "ranks":
        return np.ones(rows), np.arange(1.0, rows + 1), np.zeros(rows)
    if task.learns == "numbers":
        numbers = np.linspace(-1, 1, rows)
        return numbers, numbers + np.arange(rows) % 3, numbers
    labels = np.arange(rows) % (3 if task.learns == "classes" else 2)
    if task.learns == "links":
        return labels.astype(np.float64), np.arange(rows) % 5 * 1.0, labels
    return np.eye(3)[labels], np.eye(3)[(labels + np.arange(rows) // 6) % 3], labels


def check_execution_mode(mode: ExecutionMode, **fields: Any) -> None:
    """Check that a run in the mode goes through every training vertex of an epoch, with finite
    losses, the same twice.
    """
    claims = mode.samplers
    samplers = {} if claims is None else {"sampler": next(name for name, each in SAMPLERS.items() if claims(each))}
    with EXECUTION_MODES.added(mode.name, mode):
        losses, _ = _trained(small_graph(), {**samplers, **fields}, mode.name)
        again, _ = _trained(small_graph(), {**samplers, **fields}, mode.name)
    require(losses == again, f"two runs in mode {mode.name} have other losses")


def check_first_layer_way(way: FirstLayerWay, **fields: Any) -> None:
    """Check that a model learns the same, but for rounding, as from gathered rows."""
    with WAYS.added(way.name, way):
        losses, _ = _trained(small_graph(), {**fields, "first_layer": way.name})
    plain, _ = _trained(small_graph(), {**fields, "first_layer": "gather"})
    require(bool(np.allclose(losses, plain, rtol=1e-3)), f"first_layer {way.name} learns something else than gather")


def check_callback(callback: Any) -> None:
    """Check that a run of two epochs ends with a callback, or a class of one."""
    with TemporaryDirectory() as folder:
        result = train(small_graph(), run=f"{folder}/run", callbacks=[callback], **_FEW)
    require(result.state in ("finished", "stopped-early"), f"a run with the callback is {result.state}")


def _trained(graph: Graph, fields: dict[str, Any], mode: str | None = None) -> tuple[list[float], Any]:
    """The losses of two epochs' steps, and the scores of the validation split."""
    session = make_session(make_job({**_FEW, **fields}), graph)
    require(mode in (None, session.execution.name), f"mode {mode} was not chosen, but {session.execution.name}")
    schedule = Schedule(session.task.items, session.task.batch_size, 0, 2)
    with session.execution.steps(schedule, Position(0, 0), lambda _: 1, lambda *_: None) as steps:
        done = [step for some in steps for step in some]
    losses = [float(step.loss) for step in done]
    require(bool(np.isfinite(losses).all()), "a step's loss is not finite")
    return losses, session.evaluate(["val"])
