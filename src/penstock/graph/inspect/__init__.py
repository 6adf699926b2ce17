"""A look at a graph before training on it: what it holds, how its degrees are spread, and what will hurt.

`inspection` does it, `report` says what can be found; `scans` reads fields and lists, in blocks and never as a copy of
the graph; `advice` and `label_advice` turn findings into sentences.
"""

from penstock.graph.inspect.inspection import inspect_graph
from penstock.graph.inspect.report import DegreeReport, EdgeReport, FieldReport, Inspection, NodeReport

__all__ = ["DegreeReport", "EdgeReport", "FieldReport", "Inspection", "NodeReport", "inspect_graph"]
