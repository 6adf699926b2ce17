"""Documents: JSON that says what a folder is, YAML that a user wrote; read, checked, and refused with a sentence."""

import json
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from penstock.errors import PenstockError


class StrictDocument(BaseModel):
    """A document in which an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid")


Model = TypeVar("Model", bound=StrictDocument)
_MOST_REPEATED = 100_000


def read_checked(path: Path, model: type[Model], form: str, version: int) -> Model:
    """The document at `path`, which must be of this form and version."""
    try:
        raw = json.loads(path.read_text())
    except RecursionError:
        raise PenstockError(f"{path} is nested too deeply to be read: copy it again.") from None
    except FileNotFoundError:
        kind = form.removeprefix("penstock-")
        raise PenstockError(f"{path.parent} is no {kind} folder: it has no {path.name}.") from None
    except (OSError, ValueError) as error:
        raise PenstockError(f"{path} cannot be read ({error}): copy it again.") from None
    _check_form(raw, path, form, version)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise PenstockError(f"{path} is not valid: {first_problem(error)}.") from None


def read_yaml(path: Path, what: str) -> dict[Any, Any]:
    """The mapping in a YAML file; `what` says in errors which file the user should name."""
    try:
        raw = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PenstockError(f"{path} does not exist: name {what}.") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise PenstockError(f"{path} cannot be read ({error}): check the path and its permissions.") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise PenstockError(f"{path} is not YAML ({line}{error.problem}): mend it.") from None
    except yaml.YAMLError as error:
        raise PenstockError(f"{path} is not YAML ({' '.join(str(error).split())}): mend it.") from None
    if not isinstance(raw, dict):
        raise PenstockError(f"{path} is no mapping of keys to values, as {what} must be: mend it.")
    return raw


def parse_yaml(text: str) -> Any:
    """What a YAML text says; yaml.YAMLError if it is none, is nested too deeply, or its aliases stand for too much.

    A few hundred bytes of aliases of aliases can stand for billions of values, which whoever walks through them meets.
    """
    loader = yaml.SafeLoader(text)
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


def _repeated(root: yaml.Node) -> int:
    """How many values aliases add to those that are written down."""
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
    """On the command line lists are written 15,10,5."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def first_problem(error: ValidationError) -> str:
    """The first complaint of a validation, with the place it concerns."""
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    said = str(problem["msg"]).removeprefix("Value error, ")
    return f"{place}: {said}" if place else said


def _check_form(raw: Any, path: Path, form: str, version: int) -> None:
    if not isinstance(raw, dict) or raw.get("format") != form:
        raise PenstockError(f"{path} is not a {form} document.")
    if raw.get("version") != version:
        raise PenstockError(
            f"{path} has format version {raw.get('version')!r}; this release reads version {version}:"
            " make the folder again or use the release that wrote it."
        )
