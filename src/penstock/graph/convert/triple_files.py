"""Text files of triples: a head, a relation and a tail in each line, separated by tabs, commas or spaces.

A folder may hold `train`, `valid` (or `val`) and `test` files: the last two are held out. Ids are the words of the
files, numbered in order of first appearance; relations become edge types of their names.
"""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.edges import Triples, relation_sets
from penstock.graph.data import NodeSet
from penstock.graph.files import check_regular
from penstock.graph.folder import Graph
from penstock.graph.ids import string_ids
from penstock.graph.schema import relation_names

_SUFFIXES = (".tsv", ".txt", ".csv")
_SPLITS = {"train": "train", "valid": "val", "val": "val", "dev": "val", "test": "test"}
_NODE_TYPE = "entity"
_HEADER = {"head", "h", "subject", "source", "from"}


def is_triple_file(path: Path) -> bool:
    """Whether a file's name says that it may hold triples."""
    return _stem(path) is not None


def is_triple_folder(path: Path) -> bool:
    """Whether a folder has a file of training triples."""
    return "train" in _split_files(path)


def from_triples(path: str | Path) -> Graph:
    """The graph of a file of triples, or of a folder with train, valid and test files of them.

    Of a file that is called train, the valid and test files beside it are held out.
    """
    path = Path(path)
    files = {"train": path}
    if path.is_dir():
        files = _split_files(path)
    elif _SPLITS.get(str(_stem(path))) == "train":
        files = {**_split_files(path.parent), "train": path}
    tables = {split: _read(file) for split, file in files.items()}
    relations = _numbered([table[1] for table in tables.values()])
    entities = _numbered([column for table in tables.values() for column in (table[0], table[2])])
    count, names = len(entities), relations.to_pylist()
    triples = {split: _codes(table, entities, relations) for split, table in tables.items()}
    train = triples.pop("train")
    edges = relation_sets(_NODE_TYPE, count, len(names), train, triples)
    renamed = relation_names(names)
    kinds = {(_NODE_TYPE, name, _NODE_TYPE): each for name, each in zip(renamed, edges.values(), strict=True)}
    nodes = NodeSet(count, ids=string_ids(entities.to_pylist(), str(path)))
    other = {new: old for new, old in zip(renamed, names, strict=True) if new != old}
    origin = {"from": "triples", "files": {split: file.name for split, file in files.items()}}
    name = path.name if path.is_dir() else path.name.split(".")[0]
    return Graph({_NODE_TYPE: nodes}, kinds, name, origin=origin | ({"renamed": other} if other else {}))


def _stem(path: Path) -> str | None:
    """A file's name without suffixes, if these are of text files, compressed or not."""
    name = re.sub(r"\.(gz|bz2|zst|lz4)$", "", path.name)
    suffix = Path(name).suffix
    return name.removesuffix(suffix).lower() if suffix in _SUFFIXES else None


def _split_files(folder: Path) -> dict[str, Path]:
    """Files of a folder by the split that they are named for, train first."""
    found = dict[str, Path]()
    for path in sorted(folder.iterdir()):
        split = _SPLITS.get(str(_stem(path)))
        if split is None or not path.is_file():
            continue
        if split in found:
            raise PenstockError(
                f"{folder} has two files for split {split}, {found[split].name} and {path.name}: move one away.",
                code="duplicate",
            )
        found[split] = path
    return {split: found[split] for split in ("train", "val", "test") if split in found}


def _read(path: Path) -> list[pa.ChunkedArray]:
    """Heads, relations and tails of a file, as strings."""
    # Imported here and below: training, which reads no text, would take a third of a second longer to start.
    import pyarrow.compute as pc
    import pyarrow.csv as pacsv

    try:
        check_regular(path)
        delimiter = _delimiter(path)
        table = pacsv.read_csv(
            pa.input_stream(str(path), compression="detect"),
            pacsv.ReadOptions(autogenerate_column_names=True),
            pacsv.ParseOptions(delimiter=delimiter, quote_char='"' if delimiter == "," else False),
            pacsv.ConvertOptions(
                column_types={f"f{i}": pa.string() for i in range(4)}, strings_can_be_null=True, null_values=[""]
            ),
        )
    except (pa.ArrowInvalid, OSError) as error:
        problem = str(error).split("\n")[0].rstrip(".")
        raise PenstockError(
            f"{path} cannot be read as triples ({problem}): give a head, a relation and a tail in every line.",
            code="wrong-file",
        ) from None
    if table.num_columns != 3:
        raise PenstockError(
            f"{path} has {table.num_columns} columns, and triples have three: a head, a relation and a tail. Tables"
            " with other columns need a spec and `penstock data import` (docs/tables.md).",
            code="wrong-file",
        )
    if table.num_rows and str(table[0][0]).lower() in _HEADER:
        table = table.slice(1)
    for place, column in enumerate(table.columns):
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise PenstockError(
                f"{path}, row {row + 1}: the {('head', 'relation', 'tail')[place]} is missing: fill it in, or remove"
                " the row.",
                code="missing-data",
            )
    columns: list[pa.ChunkedArray] = table.columns
    return columns


def _delimiter(path: Path) -> str:
    """What separates the columns of the first line: tabs, else commas, else spaces."""
    with pa.input_stream(str(path), compression="detect") as stream:
        first = stream.read(1 << 16).split(b"\n")[0]
    if not first.strip():
        raise PenstockError(f"{path} is empty: give a head, a relation and a tail in every line.", code="missing-data")
    return next(mark for mark in ("\t", ",", " ") if mark.encode() in first or mark == " ")


def _numbered(columns: list[pa.ChunkedArray]) -> pa.Array:
    """The different words of some columns, in order of first appearance."""
    import pyarrow.compute as pc

    chunks = [chunk for column in columns for chunk in column.chunks]
    return pc.unique(pa.chunked_array(chunks, pa.string()))


def _codes(table: list[pa.ChunkedArray], entities: pa.Array, relations: pa.Array) -> Triples:
    import pyarrow.compute as pc

    def numbers(column: pa.ChunkedArray, words: pa.Array) -> Array:
        found: Array = pc.index_in(column, words).to_numpy().astype(np.int64)
        return found

    return numbers(table[0], entities), numbers(table[1], relations), numbers(table[2], entities)
