"""Documents: JSON that says what a folder is, YAML that a user wrote; read, checked, and refused with a sentence."""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.fields import FieldInfo

from penstock.errors import PenstockError


class StrictDocument(BaseModel):
    """A document in which an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid")


Model = TypeVar("Model", bound=StrictDocument)


def read_checked(path: Path, model: type[Model], form: str, version: int) -> Model:
    """The document at `path`, which must be of this form and version."""
    try:
        raw = json.loads(path.read_text())
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
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
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


def split_commas(value: object) -> object:
    """On the command line lists are written 15,10,5."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _count_or_auto(value: object, check: ValidatorFunctionWrapHandler) -> int:
    if value == AUTO:
        return 0
    try:
        number = int(check(value))
    except ValidationError:
        raise ValueError(f"{value!r} is neither {AUTO} nor an integer") from None
    if number < 1:
        raise ValueError(f"must be {AUTO}, or greater than or equal to 1")
    return number


AUTO = "auto"
AutoCount = Annotated[int, WrapValidator(_count_or_auto), PlainSerializer(lambda number: number or AUTO)]
"""A count from 1 on, or `auto`, which is 0 here and is written as `auto`."""


def is_auto(field: FieldInfo) -> bool:
    """Whether a field is an `AutoCount`."""
    return any(isinstance(each, WrapValidator) and each.func is _count_or_auto for each in field.metadata)


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
