"""How the three files of this folder are read: one sentence says where a mistake is."""

from pathlib import Path

from pydantic import ValidationError

from penstock.errors import PenstockError
from penstock.graph.documents import Model, first_problem, read_yaml


def read_document(path: Path, kind: type[Model], what: str) -> Model:
    """The YAML document at `path`, checked; `what` names the kind of file in errors."""
    fields = read_yaml(path, what)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise PenstockError(
            f"{path} is not {what} that can be used: {first_problem(error)}.", code="invalid-document"
        ) from None
