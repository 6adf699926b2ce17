"""Graphs from users' tables, and back.

`importer` goes through all steps: read the spec (`spec`), find the files wherever they lie (`addresses`), stream them
in any of their formats (`reader`), number the vertices (`nodes`, `index`), turn columns into fields (`fields`), resolve
the edges (`edges`) and sort them (`lists`). No table is ever held in memory; with a bound on memory, what exceeds it is
divided on disk (`bucket_files`), and a journal (`graph.journal`) lets the import go on after it was killed.
`distributed` divides the same work into `shard_tasks`, which the nodes of a cluster run. `export` goes the other way.
"""

from penstock.graph.tables.export import export_tables
from penstock.graph.tables.importer import ImportPlan, append_tables, import_tables, plan_import

__all__ = ["ImportPlan", "append_tables", "export_tables", "import_tables", "plan_import"]
