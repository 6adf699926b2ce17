"""Documents: JSON that describes a folder, YAML that a user wrote; read and validated, with errors as sentences."""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.fields import FieldInfo

from penstock.errors import Code, PenstockError, nearest_name
from penstock.graph.files import read_document
from penstock.registry import Registry


class StrictDocument(BaseModel):
    """A document in which an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, raw: Any) -> Any:
        """Refuse an unknown key first, since a misspelt key would also be reported as missing."""
        if cls.model_config.get("extra") != "forbid":
            return raw
        if isinstance(raw, dict) and not raw.keys() <= (known := _keys_of(cls)).keys():
            key = next(key for key in raw if key not in known)
            raise ValueError(f"unknown key {key!r} ({_meant(str(key), known)})")
        return raw


if yaml.__with_libyaml__:

    class _Loader(yaml.composer.Composer, yaml.CSafeLoader):
        """libyaml tokenises, many times as fast; Python composes, where nesting has a limit."""

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            yaml.composer.Composer.__init__(self)

else:
    _Loader = yaml.SafeLoader  # type: ignore[assignment, misc]

Model = TypeVar("Model", bound=StrictDocument)
Valid = TypeVar("Valid", bound=BaseModel)
_MOST_REPEATED = 100_000


@cache
def _keys_of(kind: type[StrictDocument]) -> dict[str, None]:
    """The keys of a document as they are written, in their order."""
    return {str(field.validation_alias or name): None for name, field in kind.model_fields.items()}


_AGAIN = "make the folder again or use the release that wrote it"


def read_checked(path: Path, model: type[Model], form: str, version: int, remedy: str = _AGAIN) -> Model:
    """The document at `path`, which must be of this form and version; `remedy` says what to do about an older one."""
    try:
        raw = json.loads(read_document(path))
    except RecursionError:
        raise PenstockError(f"{path} is nested too deeply to be read: copy it again.", code="damaged-file") from None
    except FileNotFoundError:
        kind = form.removeprefix("penstock-")
        raise PenstockError(
            f"{path.parent} is not a {kind} folder: it has no {path.name}.", code="wrong-file"
        ) from None
    except (OSError, ValueError) as error:
        raise PenstockError(f"{path} cannot be read ({error}): copy it again.", code="damaged-file") from None
    _check_form(raw, path, form, version, remedy)
    return validated(model, raw, f"{path} is not valid")


def read_product(path: Path, model: type[Model], form: str, version: int, again: str, command: str) -> Model:
    """The file that `command` writes; `again` is the verb of the advice for one of another version."""
    kind = form.removeprefix("penstock-")
    if path.is_dir():
        raise PenstockError(
            f"{path} is a folder, not a {kind}: name the file that `penstock {kind}` wrote.", code="wrong-file"
        )
    if not path.is_file():
        raise PenstockError(
            f"{path} does not exist: make a {kind} with `penstock {command} -o {path}`.", code="file-not-found"
        )
    return read_checked(path, model, form, version, f"{again} again with `penstock {command}`")


def validated(model: type[Valid], fields: Any, wrong: str, code: Code = "invalid-document") -> Valid:
    """The document of some fields; an error begins with `wrong` and names the first mistake in them."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise PenstockError(f"{wrong}: {first_problem(error)}.", code=code) from None


def read_yaml(path: Path, what: str, text: str | None = None) -> dict[Any, Any]:
    """The mapping in a YAML file, or in its `text`; `what` says in errors which file the user should name."""
    try:
        raw = parse_yaml(read_document(path) if text is None else text)
    except FileNotFoundError:
        raise PenstockError(f"{path} does not exist: name {what}.", code="file-not-found") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise PenstockError(
            f"{path} cannot be read ({error}): check the path and its permissions.", code="damaged-file"
        ) from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise PenstockError(
            f"{path} is not valid YAML ({line}{error.problem}): correct it.", code="invalid-document"
        ) from None
    except yaml.YAMLError as error:
        raise PenstockError(
            f"{path} is not valid YAML ({' '.join(str(error).split())}): correct it.", code="invalid-document"
        ) from None
    if not isinstance(raw, dict):
        raise PenstockError(
            f"{path} is not a mapping of keys to values, as {what} must be: correct it.", code="invalid-document"
        )
    return raw


def parse_yaml(text: str) -> Any:
    """The content of a YAML text; yaml.YAMLError if it is invalid, nested too deeply, or its aliases expand to too
    much.

    A few hundred bytes of aliases of aliases can expand to billions of values.
    """
    try:
        loader = _Loader(text)
    except UnicodeEncodeError:
        raise yaml.YAMLError("it has half of a character") from None
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _repeated(node) > _MOST_REPEATED:
            raise yaml.YAMLError(f"its aliases stand for more than {_MOST_REPEATED:,} values")
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    finally:
        loader.dispose()


def yaml_text(document: object) -> str:
    """A document as YAML, its keys in their order."""
    dumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, width=120))


def mapping_of_flag(value: object) -> object:
    """A field's value unchanged, or the mapping that a flag of the command line writes as YAML: {gamma: 0.9}."""
    if not isinstance(value, str):
        return value
    try:
        return parse_yaml(value)
    except yaml.YAMLError:
        raise ValueError(f"{value!r} is no mapping, such as {{gamma: 0.9}}") from None


def _repeated(root: yaml.Node) -> int:
    """How many values aliases add to those that are written."""
    sizes: dict[yaml.Node, int] = {}

    def size(node: yaml.Node) -> int:
        if node in sizes:
            if not sizes[node]:
                raise yaml.YAMLError("an alias stands for something that contains it")
            return sizes[node]
        sizes[node] = 0
        children: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
        pairs = children if isinstance(node, yaml.MappingNode) else [(child,) for child in children]
        sizes[node] = 1 + sum(size(child) for pair in pairs for child in pair)
        return sizes[node]

    return size(root) - len(sizes)


def split_commas(value: object) -> object:
    """Split a command line's list, such as 15,10,5."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def name_in(registry: Registry[Any], *others: str) -> Any:
    """The type of a field that names an entry of a registry, which may be a plug-in's, or is one of `others`."""

    def check(value: object, known: ValidatorFunctionWrapHandler) -> object:
        try:
            return known(value)
        except ValidationError:
            if isinstance(value, str) and value in registry:
                return value
            raise

    return Annotated[Literal[(*others, *registry)], WrapValidator(check)]


def _count_or_auto(value: object, check: ValidatorFunctionWrapHandler) -> int:
    if value == AUTO:
        return 0
    try:
        number = int(check(value))
    except ValidationError:
        raise ValueError(f"{value!r} is neither {AUTO} nor a whole number") from None
    if number < 1:
        raise ValueError(f"must be {AUTO}, or at least 1")
    return number


AUTO = "auto"
AutoCount = Annotated[int, WrapValidator(_count_or_auto), PlainSerializer(lambda number: number or AUTO)]
"""A count from 1 on, or `auto`, which is 0 here and is written as `auto`."""


def is_auto(field: FieldInfo) -> bool:
    """Whether a field is an `AutoCount`."""
    return any(isinstance(each, WrapValidator) and each.func is _count_or_auto for each in field.metadata)


def first_problem(error: ValidationError) -> str:
    """The first mistake in a document: its place, such as machines[2].nic_gbps, and what is required there.

    Pydantic's own messages are for programmers; none of them is passed on.
    """
    problem = error.errors(include_url=False)[0]
    place, kind, context = _place(problem["loc"]), str(problem["type"]), problem.get("ctx", {})
    if kind in ("value_error", "assertion_error"):
        # Callers end the sentence.
        said = re.sub(r": (did you mean .*\?)$", r" (\1)", str(context["error"]).rstrip("."))
        return f"{place}: {said}" if place else said
    place = place or "the document"
    if kind == "missing":
        return f"{place} is missing: add it"
    found = f"{problem['input']!r}"
    found = found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", str(context["expected"]))
        hint = _meant(str(problem["input"]), words) if words else f"use {context['expected']}"
        return f"{place} cannot be {found} ({hint})"
    shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
    needed = _NEEDED.get(kind, "be valid").format(**shown)
    return f"{place} must {needed} (it is {found})"


_LONGEST = 60
_WHOLE, _NUMBER, _SWITCH, _MAPPING = "be a whole number", "be a number", "be true or false", "map keys to values"
_NEEDED = {
    "greater_than": "be greater than {gt}",
    "greater_than_equal": "be at least {ge}",
    "less_than": "be less than {lt}",
    "less_than_equal": "be at most {le}",
    "multiple_of": "be a multiple of {multiple_of}",
    "finite_number": "be a finite number",
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": "be a smaller number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "bool_parsing": _SWITCH,
    "bool_type": _SWITCH,
    "string_type": "be a text",
    "string_too_short": "have at least {min_length} characters",
    "string_too_long": "have at most {max_length} characters",
    "string_pattern_mismatch": "match the pattern {pattern}",
    "list_type": "be a list",
    "tuple_type": "be a list",
    "too_short": "have at least {min_length} entries",
    "too_long": "have at most {max_length} entries",
    "dict_type": _MAPPING,
    "mapping_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "none_required": "be left out",
    "extra_forbidden": "be left out",
    "json_invalid": "be JSON",
}
"""The requirement that failed, by kind of check."""
_ARMS = ("str", "int", "float", "bool", "none")
"""Alternatives of a value that may be of several types: they are not part of what the user wrote."""


def _place(parts: Iterable[int | str]) -> str:
    """The place of a value as one would write it: nodes[0].features[2]."""
    place = ""
    documents = _names_of_documents(StrictDocument)
    for part in parts:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part not in _ARMS and part not in documents and not re.fullmatch(r"[\w-]*\[.*\]|constrained-\w+", part):
            place += f".{part}" if place else part
    return place


def _names_of_documents(kind: type[BaseModel]) -> set[str]:
    return {kind.__name__}.union(*(_names_of_documents(each) for each in kind.__subclasses__()))


def _meant(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or all of them; `nearest` as a remark."""
    known = list(known)
    close = nearest_name(word, known)
    return f"did you mean {close!r}?" if close else f"use one of {', '.join(known)}"


def _check_form(raw: Any, path: Path, form: str, version: int, remedy: str) -> None:
    if not isinstance(raw, dict) or raw.get("format") != form:
        raise PenstockError(f"{path} is not a {form} document.", code="wrong-file")
    if raw.get("version") != version:
        raise PenstockError(
            f"{path} has format version {raw.get('version')!r}; this release reads version {version}: {remedy}.",
            code="unsupported-version",
        )
