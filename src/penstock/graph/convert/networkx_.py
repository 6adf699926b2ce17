"""NetworkX graphs, directed or not, with parallel edges or without."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.edges import edge_set
from penstock.graph.convert.ids import string_ids
from penstock.graph.data import NodeSet
from penstock.graph.graph import Graph
from penstock.graph.ids import Ids
from penstock.graph.splits import take_masks

_INT64 = np.iinfo(np.int64)


def from_networkx(graph: Any) -> Graph:
    """A graph from any NetworkX graph; an undirected edge becomes two, a self loop stays one.

    Node names become ids. Numeric attributes that all nodes (or edges) have, as a number or as lists of one
    length, become fields: integers int64, floats float32. The names of the others are kept in
    `graph.origin["dropped"]`.
    """
    names = list(graph.nodes)
    number = {name: row for row, name in enumerate(names)}
    dropped: list[str] = []
    fields = _fields([attributes for _, attributes in graph.nodes(data=True)], "node", dropped)
    splits = take_masks(fields)
    nodes = NodeSet(len(names), fields, splits, _ids(names))
    sources, destinations, attributes = _edges(graph, number)
    edges = edge_set(
        sources,
        destinations,
        len(names),
        len(names),
        "The NetworkX graph",
        _fields(attributes, "edge", dropped),
    )
    origin = {"from": "NetworkX", **({"dropped": dropped} if dropped else {})}
    return Graph({"node": nodes}, {("node", "to", "node"): edges}, str(graph.name) or "networkx", origin=origin)


def _edges(graph: Any, number: dict[Any, int]) -> tuple[Array, Array, list[dict[str, Any]]]:
    both_ways = not graph.is_directed()
    sources, destinations, attributes = [], [], []
    for source, destination, values in graph.edges(data=True):
        ends = number[source], number[destination]
        for a, b in [ends, ends[::-1]] if both_ways and ends[0] != ends[1] else [ends]:
            sources.append(a)
            destinations.append(b)
            attributes.append(values)
    return np.array(sources, np.int64), np.array(destinations, np.int64), attributes


def _ids(names: Sequence[Any]) -> Ids | None:
    """None for 0..n-1 in order, integers for integers, else strings."""
    if all(isinstance(name, Integral) and not isinstance(name, bool) for name in names):
        numbers = [int(name) for name in names]
        if numbers == list(range(len(names))):
            return None
        if all(_INT64.min <= number <= _INT64.max for number in numbers):
            return np.array(numbers, np.int64)
    strings = [str(name) for name in names]
    if len(set(strings)) < len(strings):
        twice = next(text for row, text in enumerate(strings) if text in strings[:row])
        raise PenstockError(
            f"Two nodes of the NetworkX graph are both written {twice!r}: relabel one of them.", code="duplicate"
        )
    return string_ids(strings, "The NetworkX graph")


def _fields(rows: Sequence[dict[str, Any]], level: str, dropped: list[str]) -> dict[str, Array]:
    fields = {}
    for key in dict.fromkeys(key for attributes in rows for key in attributes):
        values = _array(attributes.get(key) for attributes in rows)
        if values is None:
            dropped.append(f"{level} {key}")
        else:
            fields[str(key)] = values
    return fields


def _array(values: Iterable[Any]) -> Array | None:
    """Numbers or equally long lists of numbers as an array; None for anything else."""
    found = list(values)
    if any(value is None or isinstance(value, (str, bytes)) for value in found):
        return None
    try:
        array = np.array(found)
    except (ValueError, TypeError):
        return None
    if array.dtype.kind not in "biuf" or array.ndim > 2:
        return None
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "u" and array.size and array.max() > _INT64.max:
        return None
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64, copy=False)
