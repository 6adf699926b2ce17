"""The labels that a run learned, as its folder keeps them: codes alone would mean nothing in another graph."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.train.data_options import DataOptions, Task


@dataclass(frozen=True)
class LearnedLabels:
    """`type` is a node type, or an edge type's key. `classes` is 0 for numbers, the width for several labels."""

    task: Task
    type: str
    field: str | None = None
    classes: int = 0
    multi_label: bool = False
    words: list[str] | None = None

    def facts(self) -> dict[str, Any]:
        """What run.json keeps of the labels."""
        return asdict(self)


def learned_labels(facts: Any, where: str) -> LearnedLabels | None:
    """What run.json says of labels; None where it does not, as in runs of earlier releases."""
    if facts is None:
        return None
    try:
        return TypeAdapter(LearnedLabels).validate_python(facts)
    except ValidationError:
        raise PenstockError(
            f"{where} does not say which labels the run learned: copy the run again.", code="damaged-file"
        ) from None


def check_classes(classes: int, labels: Array, options: DataOptions, owner: str) -> None:
    """Refuse more classes than `max_classes`: a model has a row of weights for each, whether it occurs or not."""
    if classes <= options.max_classes:
        return
    way_past = f"or set max_classes to {classes} if a model of so many is meant"
    if labels.ndim == 2:
        raise PenstockError(
            f"Labels {options.label!r} of {owner} have {classes:,} columns, and max_classes is"
            f" {options.max_classes:,}: learn fewer labels, {way_past}.",
            code="too-large",
        )
    different = len(np.unique(labels[labels >= 0]))
    raise PenstockError(
        f"Label {options.label!r} of {owner} is {int(labels.max())} in row {int(labels.argmax())}, which asks for"
        f" {classes:,} classes where {different:,} different labels occur and max_classes is {options.max_classes:,}:"
        f" number the labels from 0 without gaps, {way_past}.",
        code="too-large",
    )


def check_learned(learned: LearnedLabels, options: DataOptions) -> None:
    """The same for the classes that a run folder says its model has."""
    if not 0 <= learned.classes <= options.max_classes:
        raise PenstockError(
            f"The run says that it learned {learned.classes:,} classes, and its max_classes is"
            f" {options.max_classes:,}: copy the run again.",
            code="damaged-file",
        )


def recoded(labels: Array, words: list[str] | None, learned: LearnedLabels) -> tuple[Array, str | None]:
    """A graph's labels in the run's codes, -1 where the run does not know the word; and why they are of no use."""
    field = f"Labels {learned.field!r}"
    if learned.classes == 0:
        return labels, None if labels.ndim == 1 else f"{field} are {labels.shape[1]} numbers, and the run learned one."
    if learned.multi_label or labels.ndim > 1:
        width, taught = labels.shape[1:] or (1,), (learned.classes,) if learned.multi_label else (1,)
        same = width == taught
        return labels, None if same else f"{field} have {width[0]} columns, and the run learned {taught[0]}."
    if (words is None) != (learned.words is None):
        here, there = ("numbers", "words") if words is None else ("words", "numbers")
        return labels, f"{field} are {here}, and the run learned {there}: nobody can say which is which."
    if words is None or learned.words is None:
        top = int(labels.max()) if len(labels) else -1
        known = top < learned.classes
        return labels, None if known else f"{field} go up to {top}, and the run learned {learned.classes} classes."
    places = {word: code for code, word in enumerate(learned.words) if code < learned.classes}
    # One more place at the end, for -1.
    table = np.array([*(places.get(word, -1) for word in words), -1], np.int64)
    return table[np.where((labels >= 0) & (labels < len(words)), labels, -1).astype(np.int64)], None
