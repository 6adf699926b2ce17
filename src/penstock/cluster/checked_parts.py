"""The parts that the tasks of a run map, checked before kernels read them."""

from penstock.graph.graph import Graph
from penstock.graph.integrity import check_graph, require_finite
from penstock.partition import Partition


def checked_part(partition: Partition, index: int, features: str) -> Graph:
    """A part, mapped, with lists that kernels may follow and features that are numbers. Remembered on this machine."""
    graph = partition.part(index)
    check_graph(graph)
    for name, nodes in graph.nodes.items():
        if features in nodes.fields:
            require_finite(nodes, name, features, "features")
    return graph


def check_parts(partition: Partition, features: str) -> None:
    """All parts, before anything is started for them: the tasks of this machine then find them checked."""
    for index in range(partition.parts):
        checked_part(partition, index, features)
    for name in partition.book.node_types:
        partition.original(name)
