"""Sweeps: a document with other values of some of its fields, for every combination of them.

A field is named by its path, `llm.servers.nic_gbps`, or by as much of the path's end as is unique, `nic_gbps`. In a
list the field of every element is set; `machines[0].nic_gbps` and `machines[fast].nic_gbps` name one of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_origin

from penstock.errors import PenstockError, nearest

if TYPE_CHECKING:
    from pydantic import BaseModel

    Kind = TypeVar("Kind", bound=BaseModel)

MOST_POINTS = 1000
_PART = re.compile(r"([^.\[\]=]+)(?:\[([^\[\]]+)\])?")


class Sweep(NamedTuple):
    """A field, as it was named, and the values it takes."""

    field: str
    values: tuple[Any, ...]


class Part(NamedTuple):
    """One name of a path; if it names `many` elements, `chosen` may select one by name or number."""

    name: str
    many: bool = False
    chosen: str | None = None


_COMMAS = re.compile(r",(?![^\[\]{}]*[\]}])")
"""Commas between values; those within a list or a mapping are parts of one value."""
FieldPath = tuple[Part, ...]
Point = dict[str, Any]


def parse_sweeps(texts: Sequence[str]) -> list[Sweep]:
    """`nic_gbps=1,10,25` or `fanouts=[10,5],[5,5]` as a sweep; values are read as YAML reads them."""
    found: list[Sweep] = []
    for text in texts:
        field, equals, values = text.partition("=")
        field = field.strip()
        parts = [part.strip() for part in _COMMAS.split(values)]
        if not equals or not field or not all(parts):
            raise PenstockError(
                f"--sweep {text} is not FIELD=VALUE,VALUE,...: write it as lr=0.01,0.003 or fanouts=[10,5],[5,5].",
                code="invalid-value",
            )
        if field in (each.field for each in found):
            raise PenstockError(f"--sweep names {field} twice: give all its values at once.", code="duplicate")
        found.append(Sweep(field, tuple(_value(part, text) for part in parts)))
    count = prod(len(each.values) for each in found)
    if count > MOST_POINTS:
        raise PenstockError(f"The sweeps have {count:,} combinations: give at most {MOST_POINTS:,}.", code="too-large")
    return found


def points_of(sweeps: Sequence[Sweep]) -> list[Point]:
    """Every combination of the values, by field; the last field changes fastest."""
    fields = [each.field for each in sweeps]
    return [dict(zip(fields, values, strict=True)) for values in product(*(each.values for each in sweeps))]


def fields_of(model: "type[BaseModel]", before: FieldPath = ()) -> list[FieldPath]:
    """The paths of all fields of a document that hold a value, those of documents within it among them."""
    found: list[FieldPath] = []
    for name, field in model.model_fields.items():
        written = field.validation_alias if isinstance(field.validation_alias, str) else name
        inner, many = _inner_model(field.annotation)
        path = (*before, Part(written, many))
        found += fields_of(inner, path) if inner is not None else [path]
    return found


def validated_at(kind: "type[Kind]", raw: Any, point: "Point", what: object) -> "Kind":
    """A document with the values of one combination; `what` names it where they are not valid."""
    from penstock.graph.documents import validated

    return validated(kind, raw, f"With {said(point)} {what} is not valid")


def with_point(document: Mapping[str, Any], point: Point, known: Sequence[FieldPath]) -> dict[str, Any]:
    """A copy of a document, as it was written, with a point's values; `known` are the fields it may have."""
    out = deepcopy(dict(document))
    for field, value in point.items():
        path = _resolved(field, out, known)
        for node in _nodes(out, path[:-1], field):
            node[path[-1].name] = value
    return out


def said(point: Point) -> str:
    """A point as text: `nic_gbps=10, workers=4`."""
    return ", ".join(f"{name}={value}" for name, value in point.items())


def _value(text: str, sweep: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise PenstockError(
            f"--sweep {sweep} has the value {text!r}, which is not valid YAML: correct it.", code="invalid-value"
        ) from None


def _inner_model(annotation: Any) -> "tuple[type[BaseModel] | None, bool]":
    """The document that a field holds, if any, and whether it may hold several of them."""
    # Imported here, since commands show their help without documents.
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for each in get_args(annotation):
        inner, many = _inner_model(each)
        if inner is not None:
            return inner, many or get_origin(annotation) in (list, dict)
    return None, False


def _resolved(field: str, document: Mapping[str, Any], known: Sequence[FieldPath]) -> FieldPath:
    """The one known field of this document whose path ends with `field`."""
    words = [_PART.fullmatch(part) for part in field.split(".")]
    if None in words:
        raise PenstockError(
            f"--sweep {field}: write the field as machines.nic_gbps or machines[0].nic_gbps.", code="invalid-value"
        )
    given = [word.groups() for word in words if word is not None]
    names = [name for name, _ in given]
    fitting = [path for path in known if [part.name for part in path[-len(names) :]] == names]
    present = [path for path in fitting if _has(document, path)]
    chosen = [path for path in present if len(path) == len(names)] or present
    if len(chosen) > 1:
        raise PenstockError(
            f"--sweep {field} is ambiguous; it can mean {' or '.join(map(_written, chosen))}: name one of them.",
            code="option-missing",
        )
    if not chosen:
        raise PenstockError(f"No field is called {field!r} here{_meant(field, document, known)}", code="unknown-name")
    (path,) = chosen
    ends = [part._replace(chosen=which) for part, (_, which) in zip(path[-len(names) :], given, strict=True)]
    for part in ends:
        if part.chosen is not None and not part.many:
            raise PenstockError(
                f"--sweep {field}: there is only one {part.name}; leave [{part.chosen}] out.", code="unknown-name"
            )
    return (*path[: -len(names)], *ends)


def _written(path: FieldPath) -> str:
    return ".".join(part.name for part in path)


def _meant(field: str, document: Mapping[str, Any], known: Sequence[FieldPath]) -> str:
    here = [path for path in known if _has(document, path)]
    plain = re.sub(r"\[[^\]]*\]", "", field)
    names = [_written(path) for path in here] if "." in plain else [path[-1].name for path in here]
    return nearest(plain, sorted(set(names)))


def _has(document: Mapping[str, Any], path: FieldPath) -> bool:
    """Whether the document has the object that the field belongs to."""
    return next(_walk(document, path[:-1]), None) is not None


def _nodes(document: dict[str, Any], path: FieldPath, field: str) -> list[dict[str, Any]]:
    found = list(_walk(document, path))
    if not found:
        raise PenstockError(
            f"--sweep {field}: there is no such element: count from 0, or give its name.", code="unknown-name"
        )
    return found


def _walk(node: Any, path: FieldPath) -> Iterator[dict[str, Any]]:
    """The mappings that a path leads to."""
    if not isinstance(node, dict):
        return
    if not path:
        yield node
    elif node.get(path[0].name) is not None:
        for element in _elements(node[path[0].name], path[0]):
            yield from _walk(element, path[1:])


def _elements(child: Any, part: Part) -> list[Any]:
    """The elements that a name refers to: one document, or those of a list or of a mapping by name."""
    if not part.many:
        return [child]
    if isinstance(child, list):
        named = {str(at): each for at, each in enumerate(child)}
        named |= {str(each["name"]): each for each in child if isinstance(each, dict) and "name" in each}
        elements = child
    elif isinstance(child, dict) and all(isinstance(each, dict) for each in child.values()):
        named, elements = {str(name): each for name, each in child.items()}, list(child.values())
    else:
        # A single job may be written without its name.
        named, elements = {}, [child]
    return elements if part.chosen is None else [named[part.chosen]] if part.chosen in named else []
