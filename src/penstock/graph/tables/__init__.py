"""Graphs from users' tables, and back.

`importer` goes through all steps: read the spec (`spec`), stream the files in any of their formats (`reader`), number
the vertices (`nodes`, `index`, `hash_index`), turn columns into fields (`columns`, `fields`, `labels`),
resolve and sort the edges (`edges`). `export` goes the other way. No table is ever held in memory.
"""

from penstock.graph.tables.export import export_tables
from penstock.graph.tables.importer import import_tables

__all__ = ["export_tables", "import_tables"]
