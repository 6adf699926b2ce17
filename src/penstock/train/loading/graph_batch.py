"""The batch that a user's own loop gets: PyG's names for what a module takes, and blocks for `ps.nn`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from penstock.errors import PenstockError, nearest
from penstock.formatting import counted
from penstock.graph.schema import EdgeType, edge_key
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Batch
from penstock.sampling.device.block import block_on
from penstock.train.loading.batch_fields import BatchFields
from penstock.train.loading.given_graph import Place

_ABSENT = ("x", "y", "pos", "time", "batch", "edge_attr", "edge_weight", "edge_norm", "node_norm")
"""Values that are None in a batch of one type that lacks them, as in PyG's `Data`."""
_OF_SEEDS = ("y", "batch_size", "input_id", "node_norm", "edge_label_index", "edge_label")
"""Values that belong to the seeds' type in a batch of several types."""


class NoSuchField(PenstockError, AttributeError):  # noqa: N818
    """A batch has no value of this name."""


class GraphBatch:
    """A sampled batch. Rows are the vertices `n_id`; the seeds are the first `batch_size` of them.

    Names and meanings are PyG's: `x`, `edge_index`, `y`, `n_id`, `e_id`, `input_id`, masks and every other field of
    vertices and edges, by type as `batch["paper"].x` and `batch.x_dict` where the graph has several. Values are
    computed when they are first accessed, and can be assigned. Models of `ps.nn` take `blocks`. A batch stays valid for
    as long as it is referenced.
    """

    def __init__(self, planned: Planned, batch: Batch, fields: BatchFields, device: torch.device) -> None:
        self._planned, self._batch, self._device = planned, batch, device
        self._fields: BatchFields | None = fields
        self._types = fields.types
        self._known: dict[Place, dict[str, Callable[[], Any]]] = {}
        self._values: dict[Place, dict[str, Any]] = {}
        for (place, name), value in (batch.made or {}).items():
            self._values.setdefault(place, {})[name] = value

    @property
    def device(self) -> torch.device:
        """The device of all values that were not block_on by name."""
        return self._device

    @property
    def epoch(self) -> int:
        """The batch's epoch, from 0."""
        return self._planned.key.epoch

    @property
    def number(self) -> int:
        """The batch's number in its epoch, from 0."""
        return self._planned.key.batch

    def __len__(self) -> int:
        """The number of examples: seed vertices, or edges of a task on edges."""
        return self._batch.num_seeds if self._batch.links is None else len(self._planned.seeds)

    @property
    def blocks(self) -> list[Any]:
        """One block for each layer, outermost first, as models of `ps.nn` take them."""
        return [block_on(block, self._device) for block in self._batch.blocks]

    @property
    def links(self) -> Any:
        """Edges, negatives and their masks as they were drawn (`ps.sampling`); None where seeds are vertices."""
        return self._batch.links

    @property
    def num_nodes(self) -> int:
        """The number of rows of all node types."""
        return sum(map(len, self._batch.vertices.values()))

    @property
    def num_nodes_dict(self) -> dict[str, int]:
        """The number of rows by node type."""
        return {name: len(rows) for name, rows in self._batch.vertices.items()}

    @property
    def num_edges(self) -> int:
        """The number of edges in `edge_index`, or in all of `edge_index_dict`."""
        return sum(int(self._value(self._placed(kind), "edge_index").shape[1]) for kind in self._types.edge_types)

    @property
    def node_types(self) -> list[str]:
        """The names of the node types."""
        return list(self._types.node_types)

    @property
    def edge_types(self) -> list[EdgeType]:
        """(source, relation, destination) of the edge types."""
        return list(self._types.edge_types)

    def metadata(self) -> tuple[list[str], list[EdgeType]]:
        """Node types and edge types, as PyG's `to_hetero` and `HGTConv` take them."""
        return self.node_types, self.edge_types

    def keys(self) -> list[str]:
        """The names of all values."""
        return list(dict.fromkeys(name for place in self._places() for name in self._names(place)))

    def __contains__(self, name: object) -> bool:
        return name in self.keys() or name in self._types.node_types or name in self._types.edge_types

    def __getitem__(self, key: Any) -> Any:
        """The values of a node type or an edge type; in a graph of one type, also a single value."""
        found = self._type_named(key)
        if found is not None:
            return Store(self, found)
        if isinstance(key, str) and self._has(key):
            return self.__getattr__(key)
        known = [*self._types.node_types, *map(edge_key, self._types.edge_types)]
        named = "__".join(key) if isinstance(key, tuple) else str(key)
        raise PenstockError(f"The batch has no type {named!r}{nearest(named, known)}", code="unknown-name")

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._has(name):
            return self._value(None, name)
        if name.endswith("_dict"):
            return self._collected(name.removesuffix("_dict"))
        if name == "batch_size":
            return len(self)
        seeds = self._types.seeds
        if self._types.typed and name in _OF_SEEDS and seeds is not None and name in self._names(seeds):
            return self._value(seeds, name)
        if (name in _ABSENT and not self._types.typed) or name == "y":
            return None
        raise self._no_such(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif isinstance(getattr(type(self), name, None), property):
            raise NoSuchField(f"{name} of a batch cannot be assigned: it follows from its graph.", code="not-permitted")
        else:
            self._values.setdefault(None, {})[name] = value

    def __delattr__(self, name: str) -> None:
        self._values.setdefault(None, {})[name] = _DELETED

    def to(self, device: torch.device | str | int, *names: str, non_blocking: bool = False) -> "GraphBatch":
        """Move the batch, or only the named values, to a device; returns the batch itself, as PyG does."""
        where = torch.device(device)
        for name in names:
            if not isinstance(name, str):
                raise PenstockError(
                    f"batch.to(device, ...) takes names of values, such as 'x', and was given {name!r}: write"
                    " non_blocking=True by its name.",
                    code="wrong-type",
                )
        return self._apply(lambda value: value.to(where, non_blocking=non_blocking), names, None if names else where)

    def cpu(self, *names: str) -> "GraphBatch":
        """Move the batch, or only the named values, to the host."""
        return self.to("cpu", *names)

    def cuda(self, device: int | str = "cuda", *names: str, non_blocking: bool = False) -> "GraphBatch":
        """Move the batch, or only the named values, to a GPU."""
        return self.to(device if isinstance(device, str) else f"cuda:{device}", *names, non_blocking=non_blocking)

    def pin_memory(self, *names: str) -> "GraphBatch":
        """Copy values to page-locked memory; does nothing where there is no device."""
        if not torch.cuda.is_available():
            return self
        self._make_all()
        return self._apply(lambda value: value if value.is_cuda else value.pin_memory(), names)

    def clone(self) -> "GraphBatch":
        """A batch whose values are copies."""
        self._make_all()
        other = object.__new__(GraphBatch)
        other.__dict__.update(self.__dict__)
        other._values = {place: dict(values) for place, values in self._values.items()}
        return other._apply(Tensor.clone)

    def to_pyg(self) -> Any:
        """PyG's own `Data` or `HeteroData` of the batch, which shares its memory."""
        try:
            from torch_geometric.data import Data, HeteroData
        except ImportError:
            raise PenstockError(
                "PyG is not installed: install it with `pip install 'penstock[pyg]'`.", code="not-installed"
            ) from None
        self._make_all()
        if not self._types.is_hetero:
            data = Data()
            data._store._mapping.update(self._of_pyg(None))
            if "x" not in data:
                data.num_nodes = self.num_nodes
            return data
        data = HeteroData()
        for key in self._keys():
            names = None if self._types.typed else self._names_of_type(key)
            data[key].update(self._of_pyg(self._placed(key), names))
            if isinstance(key, str) and "x" not in data[key]:
                data[key].num_nodes = len(self._batch.vertices[key])
        for name, value in (self._of_pyg(None) if self._types.typed else {}).items():
            data[name] = value
        return data

    def __repr__(self) -> str:
        what = "edges" if self._batch.links is not None else "seeds"
        sizes = f"{len(self):,} {what}, {self.num_nodes:,} vertices, {counted(len(self._batch.blocks), 'layers')}"
        return f"GraphBatch({sizes}, epoch {self.epoch}, batch {self.number})"

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling: all values, and nothing of the loader's graph."""
        self._make_all()
        gone: dict[str, Any] = dict.fromkeys(("labels", "merged", "ready", "edge_rows", "made"))
        bare = replace(self._batch, features={}, **gone)
        return {**self.__dict__, "_fields": None, "_known": {}, "_batch": bare}

    def _places(self) -> list[Place]:
        return [None, *self._types.node_types, *self._types.edge_types] if self._types.typed else [None]

    def _keys(self) -> list[str | EdgeType]:
        return [*self._types.node_types, *self._types.edge_types]

    def _placed(self, key: str | EdgeType) -> Place:
        return key if self._types.typed else None

    def _makers(self, place: Place) -> dict[str, Callable[[], Any]]:
        if self._fields is None:
            return {}
        if place not in self._known:
            attributes = self._fields.attributes.get(place, {})
            handed_on = {name: partial(attributes.get, name) for name in attributes}
            self._known[place] = {**handed_on, **self._fields.makers(self._batch, self._planned, place)}
        return self._known[place]

    def _names(self, place: Place) -> list[str]:
        values = self._values.get(place, {})
        names = dict.fromkeys((*self._makers(place), *values))
        return [name for name in names if values.get(name) is not _DELETED]

    def _names_of_type(self, key: str | EdgeType) -> list[str]:
        """In a graph with one type of each, the names that belong to its vertices or to its edges."""
        edges = {"edge_index", "e_id", "num_sampled_edges", "edge_label_index", "edge_label", *self._types.edge_fields}
        if self._batch.links is not None:
            edges.add("input_id")
        return [name for name in self._names(None) if (name in edges) == isinstance(key, tuple)]

    def _has(self, name: str) -> bool:
        return name in self._names(None)

    def _value(self, place: Place, name: str) -> Any:
        values = self._values.setdefault(place, {})
        if values.get(name) is _DELETED:
            raise self._no_such(name)
        if name not in values:
            value = self._makers(place)[name]()
            fields = self._fields
            if fields is not None and fields.can_make_ahead(place, name):
                fields.wanted.add((place, name))
            values[name] = value.to(self._device) if isinstance(value, Tensor) else value
        return values[name]

    def _collected(self, name: str) -> dict[Any, Any]:
        """A value as a dictionary over the types that have it."""
        found: dict[Any, Any] = {}
        for key in self._keys():
            names = self._names(key) if self._types.typed else self._names_of_type(key)
            if name in names:
                found[key] = self._value(self._placed(key), name)
        if not found and name not in (*_ABSENT, *_OF_SEEDS):
            raise self._no_such(f"{name}_dict")
        return found

    def _make_all(self) -> None:
        for place in self._places():
            for name in self._names(place):
                self._value(place, name)

    def _apply(
        self, change: Callable[[Tensor], Tensor], names: tuple[str, ...] = (), where: torch.device | None = None
    ) -> "GraphBatch":
        """Replace tensors by changed ones: the named values, computed if needed, or all that were computed."""
        missing = [name for name in names if name not in self.keys()]
        if missing:
            raise self._no_such(missing[0])
        for place in self._places():
            for name in (name for name in names if name in self._names(place)):
                self._value(place, name)
            for name, value in self._values.get(place, {}).items():
                if isinstance(value, Tensor) and (not names or name in names):
                    self._values[place][name] = change(value)
        if where is not None:
            self._device = where
        return self

    def _of_pyg(self, place: Place, names: list[str] | None = None) -> dict[str, Any]:
        chosen = self._names(place) if names is None else names
        found = {name: self._value(place, name) for name in chosen}
        return {name: value for name, value in found.items() if value is not None}

    def _type_named(self, key: Any) -> str | EdgeType | None:
        if key in self._types.node_types or key in self._types.edge_types:
            found: str | EdgeType = key
            return found
        parts = (key,) if isinstance(key, str) else key
        near = [
            kind
            for kind in self._types.edge_types
            if parts in ((kind[1],), (kind[0], kind[2])) or key == edge_key(kind)
        ]
        return near[0] if len(near) == 1 else None

    def _no_such(self, name: str) -> NoSuchField:
        single = name.removesuffix("_dict")
        if self._types.typed and name == single and any(name in self._names(place) for place in self._places()):
            return NoSuchField(
                f"The graph has several types, so a batch has no {name}: use {name}_dict, batch[type].{name}, or its"
                " blocks.",
                code="unsupported-combination",
            )
        if single in ("edge_label_index", "edge_label") and self._batch.links is None:
            return NoSuchField(
                f"The batch's seeds are vertices, so it has no {name}: use y, or set task to link-prediction,"
                " edge-classification or edge-regression.",
                code="unsupported-combination",
            )
        if single in ("num_sampled_nodes", "num_sampled_edges"):
            return NoSuchField(
                f"A batch has {name} where subgraph_type is directional: leave it out.", code="unsupported-combination"
            )
        return NoSuchField(
            f"The batch has no {name!r}: it has {', '.join(self.keys())}; batch.to_pyg() has PyG's methods.",
            code="unknown-name",
        )


class Store:
    """The values of one node type or edge type of a batch: `batch["paper"].x`."""

    def __init__(self, batch: GraphBatch, key: str | EdgeType) -> None:
        object.__setattr__(self, "_batch", batch)
        object.__setattr__(self, "_key", key)

    def keys(self) -> list[str]:
        """The names of the values."""
        batch: GraphBatch = self._batch
        return batch._names(self._key) if batch._types.typed else batch._names_of_type(self._key)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Pairs of name and value."""
        return ((name, self[name]) for name in self.keys())

    @property
    def num_nodes(self) -> int:
        """The number of rows of a node type."""
        return len(self._batch._batch.vertices[self._key])

    @property
    def num_edges(self) -> int:
        """The number of edges of an edge type."""
        return int(self.edge_index.shape[1])

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self.keys():
            if name in ("num_sampled_nodes", "num_sampled_edges"):
                raise self._batch._no_such(name)
            said = ", ".join(self.keys())
            raise NoSuchField(f"{self._key!r} of the batch has no {name!r}: it has {said}.", code="unknown-name")
        return self._batch._value(self._batch._placed(self._key), name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._batch._values.setdefault(self._batch._placed(self._key), {})[name] = value

    def __repr__(self) -> str:
        return f"Store({self._key!r}: {', '.join(self.keys())})"


class _Deleted(Enum):
    """Marks a value that was deleted."""

    DELETED = 0


_DELETED = _Deleted.DELETED
