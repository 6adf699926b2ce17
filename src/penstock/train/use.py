"""Using a trained model: metrics, predictions and embeddings, with the user's own ids."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array, mapped_file
from penstock.graph.data import SPLITS, NodeSet
from penstock.graph.folder import Graph, read_graph
from penstock.graph.object_folders import local_copy, place_of_file
from penstock.graph.schema import edge_key
from penstock.graph.segments import changed_since
from penstock.partition import open_partition, stitch
from penstock.progress import SILENT, Progress
from penstock.train.build import make_session
from penstock.train.dataset.labels import learned_labels
from penstock.train.dataset.prepared_graph import IN_MEMORY
from penstock.train.layerwise.host import reached
from penstock.train.run_context import generators_kept
from penstock.train.run_files.checkpoints import read_best
from penstock.train.run_files.run_folder import (
    PARTS,
    RUN,
    RunFolder,
    check_code,
    check_table_file,
    read_vectors,
    write_table,
)
from penstock.train.session import Session
from penstock.train.tasks import EdgeTask, LinkTask, NodeTask, Scores, TripleTask
from penstock.train.user_functions import NOTHING_GIVEN, GivenFunctions, without_given_metric


def evaluate_run(
    path: Path,
    splits: list[str],
    graph: Graph | None = None,
    module: torch.nn.Module | None = None,
    progress: Progress = SILENT,
    **opened: Any,
) -> Scores:
    """Metrics of a run's best model on some splits, by exact inference; `opened` as for `predict_run`."""
    if not splits:
        raise PenstockError("There is no split to evaluate: name some of train, val and test.", code="option-missing")
    session = open_session(path, graph, module, progress, **opened)
    found = session.evaluate(splits, progress)
    if missing := [split for split in splits if split not in found]:
        raise no_such_split(missing[0])
    return found


def no_such_split(split: str) -> PenstockError:
    """The error for a split that the data does not have, or that is empty."""
    hint = nearest(split, SPLITS) if split not in SPLITS else ": choose another."
    return PenstockError(f"The data has no split {split!r} to evaluate{hint}", code="split-missing")


def predict_run(path: Path, out: Path, split: str | None = None, force: bool = False, **opened: Any) -> int:
    """Write predictions of a split, or of everything, in the file's format; returns the number of rows."""

    def rows(session: Session, progress: Progress) -> pa.Table:
        return predictions(session, split, progress)

    return _write_rows(path, out, force, rows, **opened)


def embed_run(path: Path, out: Path, node_type: str | None = None, force: bool = False, **opened: Any) -> int:
    """Write a table of vertex embeddings in the format of the file's extension; returns the number of rows.

    An embedding is the vertex's row before the model's last layer. `opened` are arguments of `open_session`.
    """

    def rows(session: Session, progress: Progress) -> pa.Table:
        name, values = embeddings(session, node_type, progress)
        nodes = session.graph.nodes[name]
        ids = original_ids(nodes, np.arange(nodes.count))
        return pa.table({"id": ids, "embedding": _list_column(values.float().cpu().numpy())})

    return _write_rows(path, out, force, rows, **opened)


def embed_changes(path: Path, out: Path, since: str, node_type: str | None = None, **opened: Any) -> tuple[int, int]:
    """Bring a table of embeddings up to date with the segment `since` of the graph and those after it, atomically.

    Rows that did not change stay as they are in `out`. Returns its rows, and how many of them were computed.
    """
    out = place_of_file(out)
    if out.suffix.lower() not in (".parquet", ".npz"):
        raise PenstockError(f"{out} cannot be updated: keep embeddings as .parquet or .npz.", code="unknown-name")
    known, before = read_vectors(out, "embedding")
    progress = opened.get("progress", SILENT)
    session = open_session(path, **opened)
    name = _chosen_type(session.graph, node_type, session)
    nodes, (rows, first) = session.graph.nodes[name], _changed_rows(session, name, since)
    ids = original_ids(nodes, np.arange(nodes.count))
    again = f"write all rows with `penstock embed {path} --out {out} --force`."
    if len(known) not in (first, nodes.count) or not _same_ids(known, ids[: len(known)]):
        raise PenstockError(
            f"{out} has {len(known):,} rows, and not those of the {first:,} vertices {name!r} before segment {since}:"
            f" {again}",
            code="mismatched-inputs",
        )
    same = np.setdiff1d(np.arange(0, first, max(1, first // _COMPARED)), rows)
    wanted = np.union1d(rows, same)
    found = session.inference().outputs({name: wanted}, progress, hidden=session.task.head is None)[name]
    computed, place = found.float().cpu().numpy(), np.searchsorted(wanted, same)
    near = 1e-3 * np.abs(computed).max(initial=0)
    if before.shape[1:] != computed.shape[1:] or not np.allclose(computed[place], before[same], 1e-2, near, True):
        raise PenstockError(
            f"{out} holds embeddings of other weights or columns than {path} has: {again}", code="mismatched-inputs"
        )
    values = np.empty((nodes.count, computed.shape[1]), np.float32)
    values[: len(before)] = before
    values[rows] = computed[np.searchsorted(wanted, rows)]
    write_table(pa.table({"id": ids, "embedding": _list_column(values)}), out)
    return nodes.count, len(rows)


def _same_ids(known: pa.Array, ids: pa.Array) -> bool:
    try:
        return bool(known.cast(ids.type).equals(ids))
    except pa.ArrowException:
        return False


_COMPARED = 16
"""Unchanged rows that are computed too, to find that a table is not of this run."""


def _changed_rows(session: Session, name: str, since: str) -> tuple[Array, int]:
    """The vertices of a type whose embeddings the segment `since` and later ones have changed, ascending; and how many
    there were before.
    """
    graph, reach = session.graph, session.reach()
    stored = None if graph.path is None else read_graph(graph.path)
    for kind in {kind for kinds in reach.hops for kind in kinds}:
        known = None if stored is None else stored.edges.get(kind)
        if known is None or mapped_file(known.indices) != mapped_file(graph.edges[kind].indices):
            raise PenstockError(
                f"The run reads lists {edge_key(kind)} that are not those of the graph's folder, since edges are held"
                " out of them or added: embed all vertices.",
                code="unsupported-combination",
            )
    assert graph.path is not None
    changed, model = changed_since(graph.path, since), session.model
    layers = total = len(reach.hops)
    if getattr(model, "layerwise", False):
        total = int(model.num_layers)  # type: ignore[arg-type]
        layers = session.inference().depth({name}, session.task.head is None)
    read = [reach.of_layer(number, total) for number in range(layers)]
    none = np.empty(0, np.int64)
    first = dict(changed.new)
    if session.list_weight or getattr(model, "needs_totals", True):
        # A layer reads how long its sources' lists are.
        for kind, rows in changed.destinations.items():
            first[kind[2]] = np.union1d(first.get(kind[2], none), rows)
    lists = [{kind: changed.destinations.get(kind, none) for kind in kinds} for kinds in read]
    new = changed.new.get(name, none)
    return reached(graph, first, lists)[name], graph.nodes[name].count - len(new)


def _write_rows(
    path: Path, out: Path, force: bool, rows: Callable[[Session, Progress], pa.Table], **opened: Any
) -> int:
    """Write the table that `rows` makes of a run's best model; returns its length."""
    out = place_of_file(out)
    check_table_file(out, force)
    table = rows(open_session(path, **opened), opened.get("progress", SILENT))
    write_table(table, out)
    return int(table.num_rows)


def open_session(
    path: Path,
    graph: Graph | None = None,
    module: torch.nn.Module | None = None,
    progress: Progress = SILENT,
    trust_module: bool = False,
    unchecked: bool = False,
    given: GivenFunctions = NOTHING_GIVEN,
) -> Session:
    """A run's best model, ready for evaluation and inference on its own graph or another.

    A run that names its model's code, or that of metrics, needs `trust_module`, unless `module` is given or this
    process has trained it. `given` has metrics that the run was given as objects. The graph is validated before it is
    used, unless the run's job or the caller waives that (`unchecked`).
    """
    path = local_copy(path)
    folder = RunFolder.open(path)
    learned = learned_labels(folder.facts.get("labels"), str(path / RUN))
    with generators_kept():
        job = folder.job()
        check_code(job, path, trust_module, fields=("metrics",) if module is not None else ("module", "metrics"))
        job = without_given_metric(job, folder.facts.get("given"), given.names().get("metrics", []))
        # A run waives the validation of its own graph only.
        job = job.model_copy(update={"unchecked": unchecked or (job.unchecked and graph is None)})
        if graph is None and job.graph.endswith(IN_MEMORY) and (path / PARTS).exists():
            graph = stitch(open_partition(path / PARTS, job.unchecked))
        session = make_session(job, graph, module, learned, given=given)
    session.restore_weights(read_best(folder.checkpoints, progress), str(folder.checkpoints))
    # Runs of other users may be read-only, and can be used all the same.
    session.folder = path if os.access(path, os.W_OK) else None
    return session


def original_ids(nodes: NodeSet, rows: Array) -> pa.Array:
    """The user's ids of some vertices; their numbers where there are none."""
    if nodes.ids is None:
        return pa.array(rows)
    return pa.array(nodes.ids[rows]) if isinstance(nodes.ids, np.ndarray) else nodes.ids.take(rows).to_arrow()


def embeddings(session: Session, node_type: str | None, progress: Progress = SILENT) -> tuple[str, torch.Tensor]:
    """A node type (by default the task's own) and the embeddings of all its vertices."""
    name = _chosen_type(session.graph, node_type, session)
    wanted = {name: np.arange(session.graph.nodes[name].count)}
    return name, session.inference().outputs(wanted, progress, hidden=session.task.head is None)[name]


def predictions_of(session: Session, ids: Any, progress: Progress = SILENT) -> pa.Table:
    """Predictions for vertices with some ids, or scores of (source id, destination id) pairs, in the order given.

    If the run was sampled by time, a pair has a third number, the time before which it is scored.
    """
    task: Any = session.task
    if task.facts.about == "vertices":
        nodes = session.graph.nodes[task.node_type]
        rows, place = np.unique(_rows_with(nodes, ids, task.node_type), return_inverse=True)
        out = session.inference().outputs({task.node_type: rows}, progress)[task.node_type].float().cpu()
        return pa.table({"id": original_ids(nodes, rows[place]), **_answers(task, out[torch.from_numpy(place)])})
    if (task.facts.about, task.facts.learns) == ("edges", "links"):
        source, _, destination = task.edge_type
        near, far, *when_given = _columns_of_pairs(ids)
        ends = [
            _rows_with(session.graph.nodes[name], some, name) for name, some in ((source, near), (destination, far))
        ]
        times = np.array(when_given[0]) if when_given else None
        scores = task.score_pairs(session.inference(), np.stack(ends, 1), times, progress)
        when = {} if times is None else {"time": pa.array(times)}
        return pa.table({**_ends(session.graph, task.edge_type, *ends), **when, "score": pa.array(scores)})
    raise PenstockError(
        "Classes of edges are predicted for a whole split: leave out the ids, and name the split.",
        code="unsupported-combination",
    )


def _columns_of_pairs(ids: Any) -> list[list[Any]]:
    """Sources and destinations of pairs, and their times if given."""
    try:
        columns = [list(column) for column in zip(*ids, strict=True)]
    except (TypeError, ValueError):
        columns = []
    if len(columns) not in (2, 3):
        raise PenstockError(
            "A run on links scores pairs: give a list of (source id, destination id), with a time behind them where the"
            " run was sampled by time.",
            code="shape-mismatch",
        )
    return columns


def _rows_with(nodes: NodeSet, ids: Any, node_type: str) -> Array:
    """The vertices with some of the user's ids."""
    known, flat = original_ids(nodes, np.arange(nodes.count)), np.asarray(ids)
    if flat.ndim == 0:
        meant = f"split={ids!r}" if isinstance(ids, str) and ids in SPLITS else f"[{ids!r}]"
        raise PenstockError(
            f"{ids!r} is not a list of ids of {node_type!r} vertices: give {meant}.", code="shape-mismatch"
        )
    if flat.ndim != 1 or not len(flat):
        raise PenstockError(
            f"The ids of {node_type!r} vertices have shape {flat.shape}: give a list of one id or more.",
            code="shape-mismatch",
        )
    if flat.dtype.kind == "b":
        raise PenstockError(
            f"The ids of {node_type!r} vertices are a mask: give the ids themselves, mask.nonzero() of a graph without"
            " ids of its own, or name a split.",
            code="wrong-type",
        )
    try:
        asked = pa.array(flat).cast(known.type)
    except pa.ArrowInvalid as error:
        raise PenstockError(
            f"The ids given are not ids of {node_type!r} vertices, which are {known.type} ({error}): give some of"
            " those.",
            code="wrong-type",
        ) from None
    from pyarrow import compute  # which programs that only train need not wait for

    rows = compute.index_in(asked, value_set=known)
    if rows.null_count:
        missing = asked[compute.index(rows.is_null(), True).as_py()]
        raise PenstockError(
            f"There is no vertex {missing} among the {nodes.count:,} of type {node_type!r}: check the ids.",
            code="id-out-of-range",
        )
    return np.asarray(rows.to_numpy(), np.int64)


def predictions(session: Session, split: str | None, progress: Progress = SILENT) -> pa.Table:
    """Predictions for everything, or for a split."""
    task: Any = session.task
    if task.facts.learns == "links":
        of_links = _of_links if task.facts.about == "edges" else _of_triples
        return of_links(session, task, split or "test", progress)
    return (_of_vertices if task.facts.about == "vertices" else _of_edges)(session, task, split, progress)


def _of_vertices(session: Session, task: NodeTask, split: str | None, progress: Progress) -> pa.Table:
    nodes = session.graph.nodes[task.node_type]
    rows = np.arange(nodes.count) if split is None else task.items_of(split)
    _refuse_nothing(len(rows), split, "vertices")
    out = session.inference().outputs({task.node_type: rows}, progress)[task.node_type].float().cpu()
    return pa.table({"id": original_ids(nodes, rows), **_answers(task, out)})


def _answers(task: NodeTask | EdgeTask, out: torch.Tensor) -> dict[str, Any]:
    """The columns of a model's answers: numbers, or classes and their probabilities."""
    if task.learned.classes == 0:
        return {"prediction": pa.array(out[:, 0].numpy())}
    if task.learned.multi_label:
        chosen = [np.flatnonzero(row).tolist() for row in (out > 0).numpy()]
        shares = _list_column(out.sigmoid().numpy())
        return {"prediction": pa.array(chosen, pa.list_(pa.int32())), "probability": shares}
    best = out.softmax(1).max(1)
    return {"prediction": _named(best.indices, task.learned.words), "probability": pa.array(best.values.numpy())}


def _named(codes: torch.Tensor, words: list[str] | None) -> pa.Array:
    """Classes, as the user's words if the labels were words."""
    numbers = pa.array(codes.numpy())
    return pa.array(words).take(numbers) if words else numbers


def _of_links(session: Session, task: LinkTask, split: str, progress: Progress) -> pa.Table:
    _refuse_nothing(len(task.items_of(split)), split, "held-out edges")
    pairs, scores, times = task.scored(session.inference(), split, progress)
    when = {} if times is None else {"time": pa.array(times)}
    ends = _ends(session.graph, task.edge_type, pairs[:, 0], pairs[:, 1])
    return pa.table({**ends, **when, "score": pa.array(scores)})


def _of_triples(session: Session, task: TripleTask, split: str, progress: Progress) -> pa.Table:
    """Scores and ranks of held-out triples; a rank of 1.0 means that no other entity scores as high."""
    triples = task.items_of_split(split)
    _refuse_nothing(triples.total, split, "held-out triples")
    inference = session.inference()
    ranks = task.ranks(inference, triples, progress)
    scores = task.score_triples(inference, triples, progress)
    parts = []
    for number, kind in enumerate(task.relations):
        some = np.flatnonzero(triples.relation == number)
        ends = [
            original_ids(session.graph.nodes[name], column[some] - task.entities.start(name))
            for name, column in ((kind[0], triples.head), (kind[2], triples.tail))
        ]
        columns = {"head": ends[0], "relation": pa.array([kind[1]] * len(some), pa.string()), "tail": ends[1]}
        ranked = {"tail_rank": pa.array(ranks[some, 0]), "head_rank": pa.array(ranks[some, 1])}
        parts.append(pa.table({**columns, "score": pa.array(scores[some]), **ranked}))
    return pa.concat_tables([part for part in parts if len(part)])


def _of_edges(session: Session, task: EdgeTask, split: str | None, progress: Progress) -> pa.Table:
    positions = np.arange(session.graph.edges[task.edge_type].count) if split is None else task.items_of(split)
    _refuse_nothing(len(positions), split, "edges")
    parts = []
    for sources, destinations, logits in task.outputs(session.inference(), positions, progress):
        ends = _ends(session.graph, task.edge_type, sources, destinations)
        parts.append(pa.table({**ends, **_answers(task, logits)}))
    return pa.concat_tables(parts)


def _refuse_nothing(count: int, split: str | None, what: str) -> None:
    if count == 0:
        whose = "The graph" if split is None else f"Split {split!r}"
        raise PenstockError(f"{whose} has no {what} to predict: choose another split.", code="missing-data")


def _ends(graph: Graph, kind: tuple[str, str, str], sources: Array, destinations: Array) -> dict[str, pa.Array]:
    return {
        "source": original_ids(graph.nodes[kind[0]], sources),
        "destination": original_ids(graph.nodes[kind[2]], destinations),
    }


def _list_column(values: Array) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _chosen_type(graph: Graph, asked: str | None, session: Session) -> str:
    if asked is not None:
        if not isinstance(asked, str):
            raise PenstockError(
                f"node_type is {asked!r}: give the name of a type; embeddings of some vertices are rows of the result.",
                code="wrong-type",
            )
        if asked not in graph.nodes:
            raise PenstockError(f"There is no node type {asked!r}{nearest(asked, graph.nodes)}", code="unknown-name")
        return asked
    task: Any = session.task
    if task.facts.about == "vertices":
        return str(task.node_type)
    if len(graph.nodes) == 1:
        return graph.node_types[0]
    raise PenstockError(f"Name the vertices to embed with --type: {', '.join(graph.nodes)}.", code="option-missing")
