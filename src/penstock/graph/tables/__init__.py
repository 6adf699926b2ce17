"""Graphs from users' tables, and back.

`importer` tells the story: read the spec (`spec`), stream the files (`sources`, `reader`), number the
vertices (`nodes`, `index`, `probing`), turn columns into fields (`columns`, `features`, `fields`, `labels`),
resolve and sort the edges (`edges`, `spool`, `lists`). `export` goes the other way. No table is ever held in memory.
"""

from penstock.graph.tables.export import export_tables
from penstock.graph.tables.importer import import_tables

__all__ = ["export_tables", "import_tables"]
