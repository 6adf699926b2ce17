"""The tasks of an import that is divided: functions that any process runs which sees the folder of the import.

A task reads a shard of a table, a group of ids or a range of lists, and writes a folder of its own, which gets its name
when the task is done. It answers what JSON can hold, with the checksums of its files. Most of the work is that of the
import on one machine: `nodes`, `edges`, `disk_index` and `lists`.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, open_array, write_array, write_rows_at
from penstock.graph.journal import FolderJournal, Proof, check_owner, proof_of
from penstock.graph.new_folders import JOURNAL
from penstock.graph.schema import file_name
from penstock.graph.tables.bucket_files import BucketFile, MemoryBound
from penstock.graph.tables.disk_index import (
    FoundNumbers,
    IdFile,
    KnownGroup,
    created_in_order,
    renumber,
)
from penstock.graph.tables.edges import LOST, EdgeTable, write_lost
from penstock.graph.tables.fields import learn_fields
from penstock.graph.tables.lists import (
    ArrivedEdges,
    ListDivision,
    ListSorter,
    ListTarget,
    divide_relations,
    one_relation,
    relation_file,
    reverse_of,
    write_lists,
)
from penstock.graph.tables.nodes import NodeTable
from penstock.graph.tables.reader import Shard, readable_columns
from penstock.graph.tables.spec import Spec, read_spec
from penstock.processes import ranges
from penstock.progress import SILENT
from penstock.version import __version__

# Tasks: what each is told, and what it answers.


@dataclass(frozen=True)
class Setting:
    """What all tasks of an import are told. The paths are absolute."""

    spec: str
    text: str
    """The spec as it was when the import began."""
    work: str
    memory_gb: float
    owner: str
    version: str = __version__


class ShardTask(NamedTuple):
    """A function of this file, the folder that it writes, relative to the import's, and what else it is told."""

    setting: Setting
    function: str
    folder: str
    given: dict[str, Any]


class TaskResult(NamedTuple):
    """What a task answers, as JSON has it, and proofs of the files that it has written."""

    state: Any
    files: dict[str, Proof]


Map: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Calls a function for each task, here or elsewhere, and gives the results in the order of the tasks."""


def run_task(task: ShardTask) -> TaskResult:
    """Run a task. Where it is run twice, because its process was lost or seemed to be, one of the folders is kept."""
    work = Path(task.setting.work)
    if not (work / JOURNAL).is_file() or not Path(task.setting.spec).is_file():
        missing = task.setting.spec if (work / JOURNAL).is_file() else work.parent
        raise PenstockError(
            f"The node {os.uname().nodename} does not see {missing}: the spec, the tables and the folder of --out must"
            " lie in folders that all nodes of the cluster share (tables also at an address such as s3://).",
            code="file-not-found",
        )
    check_owner(work, task.setting.owner, task.setting.version)
    function: Callable[[_TaskContext], Any] = _FUNCTIONS[task.function]
    if not task.folder:
        return TaskResult(function(_TaskContext(task, work)), {})
    folder = work / task.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    attempt = folder.with_name(f"{folder.name}.{token_hex(6)}")
    try:
        attempt.mkdir()
        with readable_columns(Path(task.setting.spec)):
            state = function(_TaskContext(task, attempt))
        paths = sorted(attempt.rglob("*.npy"))
        files = {str(path.relative_to(attempt)): proof_of(ArrayWriter.existing(path)) for path in paths}
        check_owner(work, task.setting.owner, task.setting.version)
        try:
            attempt.rename(folder)
        except OSError:
            # The same task was run by another process too, and has written the same.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(attempt, ignore_errors=True)
    return TaskResult(state, {f"{task.folder}/{name}": proof for name, proof in files.items()})


@cache
def _bound(memory_gb: float) -> MemoryBound:
    """The bound of all tasks that this process runs one after the other, by what it held before the first of them."""
    return MemoryBound(memory_gb)


class _TaskContext:
    """A task while it runs: what it was told, and the tables as it sees them."""

    def __init__(self, task: ShardTask, folder: Path) -> None:
        self.folder, self.given = folder, task.given
        self.work, self._spec_path = Path(task.setting.work), Path(task.setting.spec)
        self.bound = _bound(task.setting.memory_gb)
        self.spec: Spec = read_spec(self._spec_path, task.setting.text)

    def nodes(self) -> NodeTable:
        """The node type of the task, whose arrays are written to its folder."""
        nodes = self._nodes(self.given["type"], self.folder)
        use_learned(nodes.fields, self.given.get("learned"))
        assert nodes.table is not None, "only a table is divided into shards"
        nodes.table.shard = _shard(self.given.get("shard"))
        return nodes

    def _nodes(self, name: str, target: Path) -> NodeTable:
        spec = next(each for each in self.spec.nodes if each.type == name)
        return NodeTable(spec, self._spec_path.parent, target, target, self.bound)

    def edges(self) -> EdgeTable:
        """The edge type of the task, between node types of which it knows the kinds of ids and their numbers."""
        spec = self.spec.edges[self.given["edges"]]
        ends = dict.fromkeys((spec.type[0], spec.type[2]))
        made: dict[str, NodeTable] = {}
        for name in ends:
            about = self.given["types"][name]
            made[name] = nodes = self._nodes(name, ids_folder(self.folder, name))
            nodes.know(about["kind"], about["count"], about["elsewhere"])
            if about["first"] is not None:
                nodes.begin_shard(about["kind"], about["first"])
        table = EdgeTable(spec, self._spec_path.parent, made[spec.type[0]], made[spec.type[2]], self.bound)
        use_learned(table.fields, self.given.get("learned"))
        table.table.shard = _shard(self.given["shard"])
        return table

    def asked(self, folder: str) -> IdFile:
        """Ids that a shard of edges asks for."""
        return IdFile(self.work / folder, self.given["kind"], self.bound, known=True)

    def known(self) -> Iterator[tuple[BucketFile, int]]:
        """The ids of a node type, one file after the other, and the number of the first in each."""
        for folder, first in self.given["known"]:
            yield self.asked(f"{folder}/ids").file, first


def _shard(given: Any) -> Shard | None:
    return None if given is None else (tuple(given[0]), tuple(given[1]))


def ids_folder(folder: Path, node_type: str) -> Path:
    """Where a task writes the ids of a node type."""
    return folder / "nodes" / file_name(node_type)


def use_learned(fields: Sequence[Any], learned: Sequence[Any] | None) -> None:
    for each, known in zip([each for each in fields if each.learns], learned or [], strict=False):
        each.use_learned(known)


# Tasks of node tables.


def _number(task: _TaskContext) -> Any:
    """The ids of a shard of a node table, divided by their hashes."""
    nodes = task.nodes()
    index = nodes.begin_shard(task.given["kind"], 0)
    with closing(nodes):
        places = nodes.number_shard(SILENT)
        index.noted()
    return {"rows": index.count, "size": index.size(), "counts_from": index.counts_from, "places": places}


def _check(task: _TaskContext) -> Any:
    """The first id of a group that is there twice, with its numbers."""
    group = KnownGroup(task.given["kind"], task.known(), tuple(task.given["group"]))
    return group.repeated and [*group.repeated, group.id_of(group.repeated[1])]


def _learn(task: _TaskContext) -> Any:
    """What the fields of a table need to see of all its rows: read from the first to the last, as on one machine."""
    made = task.nodes() if "type" in task.given else task.edges()
    assert made.table is not None, "only a table has fields that learn"
    # The same columns as there, since they decide how many rows are read at once, and by that how sums are rounded.
    columns = {str(made.spec.id)} if isinstance(made, NodeTable) else set[str]()
    for _ in learn_fields(made.fields, made.table, columns, SILENT):
        pass
    return [each.learned() for each in made.fields if each.learns]


def _write_fields(task: _TaskContext) -> Any:
    """The fields of a shard of a node table."""
    nodes = task.nodes()
    with closing(nodes):
        nodes.write_shard(SILENT)


def _write_rest(task: _TaskContext) -> Any:
    """The fields of the vertices that edges have created, and the splits."""
    nodes = task.nodes()
    marks = [task.work / each for each in task.given["marks"]]
    return nodes.write_rest(marks, task.given["rows"], task.given["created"])


# Tasks of edge tables. The ids of a shard are asked for, answered group by group, and then its rows are resolved.


def _ask(task: _TaskContext) -> Any:
    asked = task.edges().ask_shard(task.folder, SILENT)
    return {column: {"rows": each.rows, "size": int(each.sizes().sum())} for column, each in asked.items()}


def _answer(task: _TaskContext) -> Any:
    """The numbers of the ids of a group that all shards ask for, one shard after the other."""
    group, creates = tuple(task.given["group"]), task.given["creates"]
    known = KnownGroup(task.given["kind"], task.known(), group)
    starts, created, unknown = [0], [0], 0
    with ArrayWriter(task.folder / "numbers.npy", np.int64) as numbers:
        for folder, lost_path in zip(task.given["asked"], task.given["lost"], strict=True):
            lost = None if lost_path is None else open_array(task.work / lost_path)
            for piece in task.asked(folder).file.pieces(*group):
                found, missing = known.look_up(piece, creates, lost)
                numbers.append(found)
                unknown += missing
            starts.append(numbers.rows)
            created.append(known.created)
    write_array(task.folder / "starts.npy", np.array(starts, np.int64))
    write_array(task.folder / "created.npy", np.diff(np.array(created, np.int64)))
    return {"unknown": unknown, "created": known.created}


class _Answers:
    """The numbers of the ids that a shard asks for, from the files of all groups."""

    def __init__(self, task: _TaskContext, about: Mapping[str, Any]) -> None:
        self.groups = [tuple(group) for group in about["groups"]]
        self._folders = [task.work / folder for folder in about["answers"]]
        self._number = task.given["number"]
        self.file = IdFile(task.work / about["asked"], about["kind"], task.bound, known=True).file

    def blocks(self) -> Iterator[Array]:
        """The numbers of each block of the file of ids, ordered by bucket as the block is."""
        files = [open_array(folder / "numbers.npy") for folder in self._folders]
        places = [int(open_array(folder / "starts.npy")[self._number]) for folder in self._folders]
        for block in range(self.file.blocks):
            bounds, parts = self.file.column("bounds")[block], []
            for group, (first, last) in enumerate(self.groups):
                stop = places[group] + int(bounds[last] - bounds[first])
                parts.append(files[group][places[group] : stop])
                places[group] = stop
            yield np.concatenate(parts)

    def found(self, path: Path, unknown: int = 0, created: int = 0) -> FoundNumbers:
        """The same in a file, to be read in the order of the rows."""
        with ArrayWriter(path, np.int64) as writer:
            for block in self.blocks():
                writer.append(block)
        return FoundNumbers(self.file, open_array(path), unknown, created)


def _order(task: _TaskContext) -> Any:
    """The numbers of the vertices that a shard of edges creates, by group."""
    answers, count = _Answers(task, task.given["end"]), task.given["first"]
    before = task.given["end"]["answers"], task.given["number"]
    counts = np.array([int(open_array(task.work / each / "created.npy")[: before[1]].sum()) for each in before[0]])
    created: list[list[Array]] = [[] for _ in answers.groups]
    for block, numbers in enumerate(answers.blocks()):
        new_groups = created_in_order(answers.file, block, numbers, answers.groups, counts)
        for group in np.unique(new_groups).tolist():
            fresh = np.flatnonzero(new_groups == group)
            created[group].append(count + fresh)
            counts[group] += len(fresh)
        count += len(new_groups)
    with ArrayWriter(task.folder / "created.npy", np.int64) as writer:
        starts = [0]
        for parts in created:
            for part in parts:
                writer.append(part)
            starts.append(writer.rows)
    write_array(task.folder / "starts.npy", np.array(starts, np.int64))


_RENUMBERED = 1 << 20


def _renumber(task: _TaskContext) -> Any:
    """The numbers of a group with those of the vertices that were created."""
    before, group, parts = task.work / task.given["answer"], task.given["group"], []
    for folder in task.given["ordered"]:
        starts = open_array(task.work / folder / "starts.npy")
        parts.append(np.array(open_array(task.work / folder / "created.npy")[starts[group] : starts[group + 1]]))
    created, numbers = np.concatenate(parts), open_array(before / "numbers.npy")
    with ArrayWriter(task.folder / "numbers.npy", np.int64) as writer:
        for start, stop in ranges(len(numbers), _RENUMBERED):
            some = np.array(numbers[start:stop])
            renumber(some, created)
            writer.append(some)
    shutil.copyfile(before / "starts.npy", task.folder / "starts.npy")


def _lose(task: _TaskContext) -> Any:
    """Which rows of a shard one of their ends loses."""
    place = task.folder / "numbers.npy"
    write_lost(_Answers(task, task.given["end"]).found(place), task.folder / LOST)
    place.unlink()


def _resolve(task: _TaskContext) -> Any:
    """The edges of a shard in order of arrival, and the ids of the vertices that it creates."""
    with ExitStack() as stack:
        table = task.edges()
        ends = dict.fromkeys((table.source, table.destination))
        for nodes in ends:
            stack.callback(nodes.close)
        answers = {}
        for place, (column, end) in enumerate(task.given["ends"].items()):
            path = task.folder / f"numbers.{place}.npy"
            answers[column] = _Answers(task, end).found(path, end["unknown"], end["created"])
            stack.callback(path.unlink)
        spool = table.spool_shard(answers, task.folder / "spool", SILENT)
        made = {nodes.spec.type: nodes.on_disk for nodes in ends if nodes.on_disk}
        created = {}
        for name, index in made.items():
            index.noted()
            created[name] = {"rows": index.count, "size": index.size(), "counts_from": index.counts_from}
    lost = {"dropped": table.dropped, "named": table.named}
    found = {"edges": spool.sources.rows, "words": list(spool.words), "created": created}
    return {"rows": table.rows, **found, **lost}


# Tasks of lists.


def _sorter(task: _TaskContext) -> ListSorter:
    """A sorter of the edges that a shard has."""
    spec = task.spec.edges[task.given["edges"]]
    target = ListTarget(task.folder, task.bound, FolderJournal(), SILENT)
    edges = arrived(task.work / task.given["spool"], task.given)
    return ListSorter(edges, spec.deduplicate, target, task.folder / "divided", task.bound)


def arrived(spool: Path, given: Mapping[str, Any]) -> ArrivedEdges:
    """The edges of a shard, as they are or reversed."""
    rows, (num_sources, num_destinations) = spool / "rows.npy", given["counts"]
    edges = ArrivedEdges(
        open_array(spool / "sources.npy"),
        open_array(spool / "destinations.npy"),
        num_sources,
        num_destinations,
        {name: open_array(spool / f"field.{file_name(name)}.npy") for name in given["fields"]},
        open_array(rows) if rows.exists() else None,
    )
    return edges.reversed() if given["reversed"] else edges


def _count(task: _TaskContext) -> Any:
    """How many edges of a shard end in each range of destinations."""
    write_array(task.folder / "counts.npy", _sorter(task).counts())


def _divide(task: _TaskContext) -> Any:
    """The edges of a shard, divided by ranges of destinations."""
    _sorter(task).divide(_division(task.given))


def _sort(task: _TaskContext) -> Any:
    """The lists of a range of destinations."""
    folders = [task.work / each / "divided" for each in task.given["divided"]]
    _sorter(task).write_range(folders, _division(task.given), task.given["number"])
    shutil.rmtree(task.folder / "divided", ignore_errors=True)


def _division(given: Mapping[str, Any]) -> ListDivision:
    return ListDivision([tuple(group) for group in given["groups"]], given["shift"])


def _divide_relations(task: _TaskContext) -> Any:
    """The edges of a shard, divided by relation, and those that are held out."""
    spool, number_of = task.work / task.given["spool"], np.array(task.given["number_of"], np.int64)
    for split, columns in _relation_columns(spool, task.given["held_out"]).items():
        file = relation_file(task.folder / split, task.given["relations"], columns)
        divide_relations(file, open_array(spool / f"relations.{split}.npy"), columns, number_of)


def _relation_columns(spool: Path, held_out: Sequence[str]) -> dict[str, dict[str, Array]]:
    """The columns that are divided by relation, by split."""
    kept = {name: open_array(spool / f"{name}.npy") for name in ("sources", "destinations")}
    return {"train": kept, **{name: {"pairs": open_array(spool / f"held_out.{name}.npy")} for name in held_out}}


def _sort_relation(task: _TaskContext) -> Any:
    """The lists of one relation, and of its reverse."""
    given, work, columns = task.given, task.folder / "work", {}
    for split in ("train", *given["held_out"]):
        folders = [task.work / each / split for each in given["divided"]]
        names = ("pairs",) if split != "train" else ("sources", "destinations")
        kinds = {name: open_array(folders[0] / f"{name}.npy") for name in names}
        # No more than one of them is open at a time.
        files = (relation_file(folder, given["relations"], kinds, known=True) for folder in folders)
        columns[split] = one_relation(files, given["number"], work / split)
    spec, (num_sources, num_destinations) = task.spec.edges[given["edges"]], given["counts"]
    kept = columns.pop("train")
    edges = ArrivedEdges(kept["sources"], kept["destinations"], num_sources, num_destinations)
    target = ListTarget(task.folder, task.bound, FolderJournal(), SILENT)
    kind = spec.type[0], given["name"], spec.type[2]
    write_lists(edges, kind, spec, work, {split: each["pairs"] for split, each in columns.items()}, target)
    if spec.reverse:
        write_lists(edges.reversed(), reverse_of(kind), spec, work, {}, target)
    shutil.rmtree(work)


# The last task: pieces are copied to their places in the graph's files.


def _copy(task: _TaskContext) -> Any:
    for target, start, source, skip, add in task.given["copies"]:
        rows = open_array(task.work / source)[skip:]
        write_rows_at(task.work / target, start, rows, add)


_FUNCTIONS: dict[str, Callable[[_TaskContext], Any]] = {
    each.__name__[1:]: each
    for each in (
        _number,
        _check,
        _learn,
        _write_fields,
        _write_rest,
        _ask,
        _answer,
        _order,
        _renumber,
        _lose,
        _resolve,
        _count,
        _divide,
        _sort,
        _divide_relations,
        _sort_relation,
        _copy,
    )
}
