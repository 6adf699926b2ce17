"""An import whose steps are divided into tasks (`shard_tasks`); whoever calls it says who runs them.

Each task writes pieces of the graph's files, which the last step copies to their places. The numbers of vertices and
the order of edges are those that one process would give, so the graph is the same to the byte. What a task has
answered and the checksums of its files are noted in the import's journal; nothing here is as long as there are vertices
or edges.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import ArrayWriter, open_array
from penstock.graph.data import SPLITS, EdgeSet, NodeSet
from penstock.graph.folder import edges_folder, nodes_folder
from penstock.graph.ids import StringIds
from penstock.graph.journal import piece_of
from penstock.graph.schema import EdgeType, edge_key, file_name, relation_names
from penstock.graph.tables.disk_index import (
    BUCKETS,
)
from penstock.graph.tables.edges import LOST, EdgeTable
from penstock.graph.tables.fields import FieldWriters
from penstock.graph.tables.index import IdKind
from penstock.graph.tables.lists import ListSorter, ListTarget, lists_step, refuse_repeated, reverse_of
from penstock.graph.tables.nodes import MARKS, NodeTable
from penstock.graph.tables.reader import Shard, Table
from penstock.graph.tables.shard_tasks import Map, Setting, ShardTask, arrived, ids_folder, run_task, use_learned


class Done(NamedTuple):
    """The folder and the answer of a task that is done."""

    folder: Path
    state: Any


# The import: its steps in their order.

_LEAST_ROWS, _MOST_ROWS, _SHARDS = 1 << 17, 1 << 22, 64
"""The rows of a shard, by how many a table has."""
_GROUPS, _GROUP_ROWS = 16, 1 << 17
_RANGES, _RANGE_EDGES = 16, 1 << 17
"""Groups and ranges for tasks beside each other, where memory does not ask for more of them."""
_SLACK = 1.15
"""Groups of equally many buckets are not equally large."""
_COPIED_BYTES = 64 << 20


@dataclass
class _Vertices:
    """What is known of the vertices of a type."""

    table: NodeTable
    grows: bool
    """Whether edges may create some."""
    count: int = 0
    table_rows: int = 0
    size: int = 0
    """The bytes that an index of all ids takes."""
    counting: bool = True
    """Whether the ids are 0, 1, 2, ..."""
    known: list[tuple[str, int]] = field(default_factory=list)
    """Folders of ids, and the number of the first id in each."""

    @property
    def elsewhere(self) -> bool:
        """Whether ids have to be looked up."""
        return self.grows or not (self.kind == "integer" and self.counting)

    @property
    def kind(self) -> IdKind:
        return self.table.kind or "string"

    def add(self, folder: str, state: Mapping[str, Any]) -> None:
        """Add the ids that a task has numbered."""
        self.known.append((folder, self.count))
        self.counting = self.counting and (not state["rows"] or state["counts_from"] == self.count)
        self.count += state["rows"]
        self.size += state["size"]

    def about(self, count: int, first: int | None = None) -> dict[str, Any]:
        """What a task is told of the type; `first`: the number of the first vertex that it creates."""
        return {"kind": self.kind, "count": count, "elsewhere": self.elsewhere, "first": first}


class DividedImport:
    """An import that is divided into tasks."""

    def __init__(
        self, nodes: dict[str, NodeTable], edges: list[EdgeTable], target: ListTarget, setting: Setting, mapped: Map
    ) -> None:
        self._nodes, self._edges, self._target, self._setting, self._mapped = nodes, edges, target, setting, mapped
        self._work, self._journal = Path(setting.work), target.journal
        growing = {end for table in edges for _, end in table.ends() if table.creates(end)}
        self._vertices = {name: _Vertices(table, table in growing) for name, table in nodes.items()}
        self._copies: list[tuple[Path, list[Path], bool]] = []

    def run(self) -> tuple[dict[str, NodeSet], dict[EdgeType, EdgeSet]]:
        """Read all tables, and write the arrays of the graph."""
        for name, each in self._vertices.items():
            if each.table.table is not None:
                self._number(name, each, each.table.table)
        written = {name: self._write_fields(name, table) for name, table in self._nodes.items()}
        resolved = [self._resolve(place, table) for place, table in enumerate(self._edges)]
        nodes = {name: self._finish_nodes(name, each, written[name]) for name, each in self._vertices.items()}
        edges: dict[EdgeType, Callable[[], EdgeSet]] = {}
        for place, table in enumerate(self._edges):
            write = self._write_lists if table.spec.relation is None else self._write_relations
            made = write(place, table, resolved[place])
            refuse_repeated(made, edges)
            edges |= made
        self._copy_all()
        return {name: make() for name, make in nodes.items()}, {kind: make() for kind, make in edges.items()}

    # Steps.

    def _tasks(self, step: str, function: str, given: Sequence[dict[str, Any]]) -> list[Done]:
        """Run the tasks of a step that are not done yet; the folders and answers of all."""
        folders = [f"tasks/{file_name(step)}/{number}" for number in range(len(given))]
        names = [piece_of(step, number) for number in range(len(given))]
        missing = [number for number, name in enumerate(names) if self._journal.state(name) is None]
        tasks = [ShardTask(self._setting, function, folders[number], given[number]) for number in missing]
        with self._target.progress.step(step, len(given), "tasks"):
            self._target.progress.advance(len(given) - len(tasks))
            for number, result in zip(missing, self._mapped(run_task, tasks), strict=True):
                self._journal.note(names[number], {"found": result.state}, proofs=result.files)
                self._target.progress.advance(1)
        return [
            Done(self._work / folder, self._journal.state(name)["found"])
            for folder, name in zip(folders, names, strict=True)
        ]

    def _end(self, step: str, gone: Iterable[Path] = ()) -> None:
        """Note that a step is done, and that these files are needed no more."""
        if self._journal.state(step) is None:
            self._journal.note(step, gone=gone)

    def _decided(self, step: str, decide: Callable[[], Any]) -> Any:
        """What the driver decides for a step: as another process has noted it, or decided now."""
        if (known := self._journal.state(f"{step}, decided")) is None:
            known = decide()
            self._journal.note(f"{step}, decided", known)
        return known

    def _shards(self, what: str, table: Table) -> list[Shard]:
        rows = min(_MOST_ROWS, max(_LEAST_ROWS, table.rows // _SHARDS))
        return [(tuple(a), tuple(b)) for a, b in self._decided(what, lambda: table.shards(rows))]

    def _groups(self, step: str, size: int, rows: int) -> list[list[int]]:
        """Groups of buckets whose ids fit into a task's memory."""
        assert self._target.bound is not None, "tasks have a bound"
        count = max(int(size * _SLACK) // self._target.bound.group_bytes + 1, min(_GROUPS, rows // _GROUP_ROWS))
        bounds = [BUCKETS * each // min(count, BUCKETS) for each in range(min(count, BUCKETS) + 1)]
        return list(self._decided(step, lambda: [list(each) for each in pairwise(bounds)]))

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._work))

    # Node tables.

    def _number(self, name: str, each: _Vertices, table: Table) -> None:
        step, nodes = f"{name}: ids", each.table
        with closing(table.chunks({str(nodes.spec.id)})) as chunks:
            nodes.ids_of(next(chunks), str(nodes.spec.id))
        shards = self._shards(f"{name}: rows", table)
        told: dict[str, Any] = {"type": name, "kind": each.kind}
        done = self._tasks(step, "number", [{**told, "shard": shard} for shard in shards])
        places = []
        for task in done:
            places += [(each.count + first, file, start) for first, file, start in task.state["places"]]
            each.add(self._relative(task.folder), task.state)
        table.check_rows(each.count)
        nodes.place_shards(places)
        if not (each.kind == "integer" and each.counting):
            groups = self._groups(f"{step}: groups", each.size, each.count)
            told["known"] = each.known
            found = self._tasks(f"{step}: repeated", "check", [{**told, "group": group} for group in groups])
            if repeated := [task.state for task in found if task.state]:
                raise nodes.twice(*min(repeated, key=lambda each: each[:2]))
        each.table_rows = each.count
        self._end(step)

    def _write_fields(self, name: str, nodes: NodeTable) -> list[Done]:
        if nodes.table is None or not (nodes.fields or nodes.spec.split):
            return []
        learned = self._learned(f"{name}: columns", nodes.fields, {"type": name})
        shards = self._shards(f"{name}: rows", nodes.table)
        told = {"type": name, "learned": learned}
        done = self._tasks(f"{name}: fields", "write_fields", [{**told, "shard": shard} for shard in shards])
        self._end(f"{name}: fields")
        return done

    def _learned(self, step: str, fields: Sequence[Any], told: dict[str, Any]) -> list[Any]:
        """What fields learn from all rows of their table: one task reads them."""
        if not any(each.learns for each in fields):
            return []
        learned: list[Any] = self._tasks(step, "learn", [told])[0].state
        use_learned(fields, learned)
        return learned

    def _finish_nodes(self, name: str, each: _Vertices, written: list[Done]) -> Callable[[], NodeSet]:
        """What is left to do for a node type; returns what makes it of the files that are copied at the end."""
        target, pieces, splits = nodes_folder(self._target.folder, name), [task.folder for task in written], []
        if written:
            marks = [self._relative(task / MARKS) for task in pieces if (task / MARKS).exists()]
            told = {"type": name, "marks": marks, "rows": each.table_rows, "created": each.count - each.table_rows}
            learned = [field.learned() for field in each.table.fields if field.learns]
            rest = self._tasks(f"{name}: splits", "write_rest", [{**told, "learned": learned}])[0]
            splits = [(split, target / f"split.{split}.npy") for split in rest.state]
            for _, path in splits:
                self._copy(path, [rest.folder / path.name])
            pieces.append(rest.folder)
        fields = {field.name: target / f"field.{file_name(field.name)}.npy" for field in each.table.fields}
        for path in fields.values():
            self._copy(path, [piece / path.name for piece in pieces])
        ids = self._ids(each, target)
        table_rows, categories = each.table_rows, FieldWriters(each.table.fields, target).categories()

        def make() -> NodeSet:
            arrays = [open_array(path) for path in ids]
            known = StringIds(*arrays) if len(arrays) == 2 else arrays[0] if arrays else None
            nodes = NodeSet(
                each.count,
                {field: open_array(path) for field, path in fields.items()},
                {split: open_array(path) for split, path in splits},
                known,
                categories,
            )
            each.table.resume_finished(nodes, {"table_rows": table_rows})
            return nodes

        each.table.know(each.kind, each.count, elsewhere=True)
        return make

    def _ids(self, each: _Vertices, target: Path) -> list[Path]:
        """The files of the ids, unless they are 0, 1, 2, ..."""
        if not each.known or (each.kind == "integer" and each.counting):
            return []
        names = ["ids.offsets.npy", "ids.bytes.npy"] if each.kind == "string" else ["ids.npy"]
        for name in names:
            folders = [self._work / folder for folder, _ in each.known]
            self._copy(target / name, [folder / name for folder in folders], sums=name == "ids.offsets.npy")
        return [target / name for name in names]

    # Edge tables.

    def _resolve(self, place: int, table: EdgeTable) -> list[Done]:
        """The edges of a table in order of arrival, by shard."""
        table.decide_kinds()
        shards = self._shards(f"{table.key}: rows", table.table)
        ends = {nodes.spec.type: self._vertices[nodes.spec.type] for _, nodes in table.ends()}
        before = {name: each.about(each.count) for name, each in ends.items()}
        learned = self._learned(f"{table.key}: columns", table.fields, {"edges": place, "types": before, "shard": None})
        told = {"edges": place, "types": before}
        asked: list[Done] = []
        if any(each.elsewhere for each in ends.values()):
            step = f"{table.key}: ids"
            asked = self._tasks(step, "ask", [{**told, "shard": shard, "number": n} for n, shard in enumerate(shards)])
        answers = self._answer_ends(table, asked)
        after = {name: each.count for name, each in ends.items()}
        firsts = {name: [None] * len(shards) for name in ends} | {
            name: list(np.cumsum([ends[name].count, *new])[:-1]) for name, new in answers.created.items()
        }
        for name, new in answers.created.items():
            after[name] += sum(new)
        given = []
        for number, shard in enumerate(shards):
            of_ends = {column: {**end, "asked": end["asked"][number]} for column, end in answers.ends.items()}
            types = {
                name: each.about(after[name], None if (first := firsts[name][number]) is None else int(first))
                for name, each in ends.items()
            }
            given.append(
                {"edges": place, "types": types, "shard": shard, "number": number, "ends": of_ends, "learned": learned}
            )
        done = self._tasks(table.step, "resolve", given)
        rows = 0
        for task in done:
            rows += task.state["rows"]
            table.add_lost(task.state["dropped"], task.state["named"])
            for name, state in task.state["created"].items():
                ends[name].add(self._relative(ids_folder(task.folder, name)), state)
        table.table.check_rows(rows)
        table.check_lost()
        self._end(table.step, [*(task.folder for task in asked), *answers.folders])
        return done

    def _answer_ends(self, table: EdgeTable, asked: list[Done]) -> "_EndAnswers":
        """The numbers of the ids at the ends that are looked up; ends that may not create vertices come first."""
        found = _EndAnswers()
        if not asked:
            return found
        columns = list(asked[0].state)
        of_column = dict(table.ends())
        if table.source is table.destination:
            of_column = {table.spec.source: table.source}
        lost: list[str | None] = [
            self._relative(task.folder / LOST) if (task.folder / LOST).exists() else None for task in asked
        ]
        for column in sorted(columns, key=lambda column: table.creates(of_column[column])):
            nodes, creates = of_column[column], table.creates(of_column[column])
            each, step = self._vertices[nodes.spec.type], f"{table.key}: numbers of {column}"
            files = [self._relative(task.folder / str(columns.index(column))) for task in asked]
            size, rows = (sum(task.state[column][what] for task in asked) for what in ("size", "rows"))
            groups = self._groups(step, each.size + size * creates, rows)
            told: dict[str, Any] = {"kind": each.kind, "known": each.known, "asked": files, "creates": creates}
            told["lost"] = lost if creates else [None] * len(files)
            answered = self._tasks(step, "answer", [{**told, "group": group} for group in groups])
            end = {"kind": each.kind, "groups": groups, "asked": files}
            end |= {what: sum(task.state[what] for task in answered) for what in ("unknown", "created")}
            found.folders += [task.folder for task in answered]
            if creates:
                answered = self._number_created(step, each, end, answered, found)
            end["answers"] = [self._relative(task.folder) for task in answered]
            found.ends[column] = end
            if not creates and len(columns) > 1 and any(table.creates(other) for other in of_column.values()):
                given = [{"end": {**end, "asked": file}, "number": n} for n, file in enumerate(files)]
                losing = self._tasks(f"{step}: lost", "lose", given)
                lost = [self._relative(task.folder / LOST) for task in losing]
                found.folders += [task.folder for task in losing]
        return found

    def _number_created(
        self, step: str, each: _Vertices, end: dict[str, Any], answered: list[Done], found: "_EndAnswers"
    ) -> list[Done]:
        """Number the vertices that edges create in order of arrival."""
        new = [0] * len(end["asked"])
        if end["created"]:
            files = (task.folder / "created.npy" for task in answered)
            new = self._decided(
                f"{step}: created", lambda: np.sum([open_array(each) for each in files], axis=0).tolist()
            )
        found.created[each.table.spec.type] = new
        if not end["created"]:
            return answered
        answers = [self._relative(task.folder) for task in answered]
        firsts = np.cumsum([each.count, *new])[:-1].tolist()
        given = [
            {"end": {**end, "asked": file, "answers": answers}, "number": n, "first": firsts[n]}
            for n, file in enumerate(end["asked"])
        ]
        ordered = self._tasks(f"{step}: created", "order", given)
        told = {"ordered": [self._relative(task.folder) for task in ordered]}
        renumbered = self._tasks(
            f"{step}: renumbered", "renumber", [{**told, "answer": a, "group": n} for n, a in enumerate(answers)]
        )
        found.folders += [task.folder for task in (*ordered, *renumbered)]
        return renumbered

    # Lists.

    def _write_lists(self, place: int, table: EdgeTable, resolved: list[Done]) -> dict[EdgeType, Callable[[], EdgeSet]]:
        """The lists of an edge type, and of its reverse where that is wanted."""
        spec, ends = table.spec, (table.source, table.destination)
        told = {
            "edges": place,
            "counts": [self._vertices[nodes.spec.type].count for nodes in ends],
            "fields": [each.name for each in table.fields],
        }
        held_out = SPLITS[1:] if spec.split else ()
        made = {spec.type: self._sort(spec.type, {**told, "reversed": False}, table, resolved, held_out)}
        if spec.reverse_type:
            made[spec.reverse_type] = self._sort(spec.reverse_type, {**told, "reversed": True}, table, resolved)
        self._end(lists_step(spec), [path for task in resolved for path in _unsorted(task.folder / "spool")])
        return made

    def _sort(
        self,
        kind: EdgeType,
        told: dict[str, Any],
        table: EdgeTable,
        resolved: list[Done],
        held_out: Sequence[str] = (),
    ) -> Callable[[], EdgeSet]:
        step, target = f"{edge_key(kind)}: lists", edges_folder(self._target.folder, kind)
        spools = [task.folder / "spool" for task in resolved]
        if self._journal.state(f"{step}: sorted") is None:
            given = [{**told, "spool": self._relative(spool)} for spool in spools]
            count = sum(task.state["edges"] for task in resolved)
            told |= self._decided(step, lambda: self._division(step, given, table, count))
            divided = self._tasks(f"{step}: divided", "divide", [{**each, **told} for each in given])
            told |= {"divided": [self._relative(task.folder) for task in divided], "spool": given[0]["spool"]}
            numbers = range(len(told["groups"]))
            self._tasks(f"{step}: ranges", "sort", [{**told, "number": number} for number in numbers])
            counted = self._work / f"tasks/{file_name(f'{step}: counted')}"
            self._end(f"{step}: sorted", [counted, *(task.folder for task in divided)])
        ranges_ = range(len(self._journal.state(f"{step}, decided")["groups"]))
        pieces = [self._work / f"tasks/{file_name(f'{step}: ranges')}/{number}" for number in ranges_]
        fields = {each.name: target / f"field.{file_name(each.name)}.npy" for each in table.fields}
        for path in (target / "indptr.npy", target / "indices.npy", *fields.values()):
            self._copy(path, [piece / path.name for piece in pieces], sums=path.name == "indptr.npy")
        apart = {name: target / f"held_out.{name}.npy" for name in held_out}
        for path in apart.values():
            self._copy(path, [spool / path.name for spool in spools])
        categories = FieldWriters(table.fields, target).categories()
        return lambda: EdgeSet(
            open_array(target / "indptr.npy"),
            open_array(target / "indices.npy"),
            {name: open_array(path) for name, path in fields.items()},
            {name: open_array(path) for name, path in apart.items()},
            categories,
        )

    def _write_relations(
        self, place: int, table: EdgeTable, resolved: list[Done]
    ) -> dict[EdgeType, Callable[[], EdgeSet]]:
        """The lists of a table whose rows have a relation each: one task for each relation."""
        spec, target = table.spec, self._target.folder
        words = list(dict.fromkeys(word for task in resolved for word in task.state["words"]))
        names, held_out = relation_names(words), SPLITS[1:] if spec.split else ()
        places = {word: number for number, word in enumerate(words)}
        told = {"edges": place, "relations": len(words), "held_out": list(held_out)}
        step, given = f"{table.key}: by relation", []
        for task in resolved:
            codes = [places[word] for word in task.state["words"]]
            given.append({**told, "spool": self._relative(task.folder / "spool"), "number_of": codes})
        divided: list[Done] = []
        if self._journal.state(lists_step(spec)) is None:
            divided = self._tasks(step, "divide_relations", given)
        told |= {"counts": [self._vertices[nodes.spec.type].count for nodes in (table.source, table.destination)]}
        told |= {"divided": [self._relative(task.folder) for task in divided]}
        sorted_ = self._tasks(
            f"{table.key}: lists of relations",
            "sort_relation",
            [{**told, "number": number, "name": name} for number, name in enumerate(names)],
        )
        made: dict[EdgeType, Callable[[], EdgeSet]] = {}
        for name, task in zip(names, sorted_, strict=True):
            kind = spec.type[0], name, spec.type[2]
            made[kind] = self._whole_lists(edges_folder(target, kind), edges_folder(task.folder, kind), held_out)
            if spec.reverse:
                back = reverse_of(kind)
                made[back] = self._whole_lists(edges_folder(target, back), edges_folder(task.folder, back))
        gone = [path for task in resolved for path in (task.folder / "spool").glob("*.npy")]
        self._end(lists_step(spec), [*gone, *(task.folder for task in divided)])
        return made

    def _whole_lists(self, target: Path, source: Path, held_out: Sequence[str] = ()) -> Callable[[], EdgeSet]:
        """Lists that one task has written."""
        for name in ("indptr", "indices", *(f"held_out.{each}" for each in held_out)):
            self._copy(target / f"{name}.npy", [source / f"{name}.npy"])
        return lambda: EdgeSet(
            open_array(target / "indptr.npy"),
            open_array(target / "indices.npy"),
            {},
            {name: open_array(target / f"held_out.{name}.npy") for name in held_out},
        )

    def _division(self, step: str, given: list[dict[str, Any]], table: EdgeTable, count: int) -> dict[str, Any]:
        """Ranges of destinations whose edges fit into a task's memory."""
        assert self._target.bound is not None, "tasks have a bound"
        counted = self._tasks(f"{step}: counted", "count", given)
        counts = np.sum([open_array(task.folder / "counts.npy") for task in counted], axis=0)
        edges = arrived(self._work / given[0]["spool"], given[0])
        sorter = ListSorter(edges, table.spec.deduplicate, self._target, self._work, self._target.bound)
        return sorter.division(counts, max(1, min(_RANGES, count // _RANGE_EDGES)))._asdict()

    # Copies.

    def _copy(self, target: Path, pieces: list[Path], sums: bool = False) -> None:
        """Have a file be made of pieces; of `sums` each begins with a 0 that stands for the last of those before."""
        self._copies.append((target, pieces, sums))

    def _copy_all(self) -> None:
        """Make room for all files, and copy their pieces to their places."""
        batch: list[Any] = []
        tasks, size = list[ShardTask](), 0
        for target, pieces, sums in self._copies:
            for copy, bytes_ in self._placed(target, pieces, sums):
                batch.append(copy)
                size += bytes_
                if size >= _COPIED_BYTES:
                    tasks.append(ShardTask(self._setting, "copy", "", {"copies": batch}))
                    batch, size = [], 0
        tasks.append(ShardTask(self._setting, "copy", "", {"copies": batch}))
        with self._target.progress.step("files", len(tasks), "tasks"):
            for _ in self._mapped(run_task, tasks):
                self._target.progress.advance(1)

    def _placed(self, target: Path, pieces: list[Path], sums: bool) -> Iterator[tuple[Any, int]]:
        """Make a file, and say where each piece goes."""
        proofs = [self._journal.proof(self._relative(piece)) for piece in pieces]
        kinds = {(proof.dtype, tuple(proof.shape[1:])) for proof in proofs}
        if len(kinds) > 1:
            raise PenstockError(
                f"{target.stem} has values of different types or widths in different shards of its table: give all"
                " files of the table the same types.",
                code="shape-mismatch",
            )
        dtype, shape = kinds.pop()
        rows = sum(proof.shape[0] - sums for proof in proofs) + sums
        with ArrayWriter(target, np.dtype(dtype), shape) as writer:
            writer.extend(rows)
        start = total = 0
        for piece, proof in zip(pieces, proofs, strict=True):
            skip = int(sums and start > 0)
            yield (
                [self._relative(target), start, self._relative(piece), skip, total],
                proof.shape[0] * np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)),
            )
            start += proof.shape[0] - skip
            total += int(open_array(piece)[-1]) if sums else 0


@dataclass
class _EndAnswers:
    """What was answered about the ends of an edge table."""

    ends: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By column, what a task needs to find the numbers of its ids."""
    created: dict[str, list[int]] = field(default_factory=dict)
    """By node type, how many vertices each shard creates."""
    folders: list[Path] = field(default_factory=list)


def _unsorted(spool: Path) -> Iterator[Path]:
    """The files of a spool that are needed no more once its edges are sorted."""
    for path in sorted(spool.glob("*.npy")):
        if not path.name.startswith("held_out."):
            yield path
