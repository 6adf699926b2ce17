"""A folder to write tables and specs into, and to import them from."""

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml

from penstock.errors import PenstockError
from penstock.graph import Graph
from penstock.graph.tables import import_tables

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


class Workbench:
    """Tables, a spec and the graph made of them, in one temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"

    def table(self, name: str, columns: dict[str, Any]) -> str:
        """Write columns as a file whose extension says how."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table(columns)
        if path.suffix == ".parquet":
            pq.write_table(table, path)
        else:
            write_bytes(path, as_text(table, name))
        return name

    def text(self, name: str, text: str | bytes) -> str:
        """Write a file as it is."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return name

    def spec(self, nodes: list[dict[str, Any]], edges: list[dict[str, Any]] | None = None, **more: Any) -> Path:
        """Write a spec."""
        path = self.folder / "spec.yaml"
        path.write_text(yaml.safe_dump({"name": "test", "nodes": nodes, "edges": edges or [], **more}))
        return path

    def graph(self, nodes: list[dict[str, Any]], edges: list[dict[str, Any]] | None = None, **options: Any) -> Graph:
        """Import and open."""
        return import_tables(self.spec(nodes, edges), self.out, **options)

    def sentence(self, nodes: list[dict[str, Any]], edges: list[dict[str, Any]] | None = None, **more: Any) -> str:
        """The sentence an import ends with; it must be one line and leave nothing behind."""
        return self.sentence_of(self.spec(nodes, edges, **more))

    def sentence_of(self, spec: Path) -> str:
        """The same for a spec that is there."""
        before = sorted(self.folder.rglob("*"))
        with pytest.raises(PenstockError) as caught:
            import_tables(spec, self.out)
        assert sorted(self.folder.rglob("*")) == before
        sentence = str(caught.value)
        assert "\n" not in sentence and sentence[-1] in ".?"
        return sentence


def as_text(table: pa.Table, name: str) -> bytes:
    """A table as CSV, TSV or JSON lines."""
    if ".jsonl" in name:
        return "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    sink = pa.BufferOutputStream()
    pacsv.write_csv(table, sink, pacsv.WriteOptions(delimiter="\t" if ".tsv" in name else ","))
    return sink.getvalue().to_pybytes()


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, compressed as its extension says."""
    codec = COMPRESSIONS.get(path.suffix)
    if codec == "gzip":
        path.write_bytes(gzip.compress(data))
    elif codec == "bz2":
        path.write_bytes(bz2.compress(data))
    elif codec:
        with pa.CompressedOutputStream(str(path), codec) as stream:
            stream.write(data)
    else:
        path.write_bytes(data)


USERS = {"type": "user", "files": "users.parquet", "id": "id"}
FOLLOWS = {"type": ["user", "follows", "user"], "files": "follows.parquet", "source": "a", "destination": "b"}
