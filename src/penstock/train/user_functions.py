"""Functions of the user's that a run calls: a loss, further metrics, callbacks.

A job names them by their location. In Python they may also be objects, of which a run folder keeps only the names: they
must be passed again to resume such a run.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from penstock.errors import PenstockError, nearest
from penstock.nn.user_module import code_at_fault, imported_callable
from penstock.train.callbacks import CALLBACKS
from penstock.train.job import Job
from penstock.train.job_options import LINK_LOSSES
from penstock.train.losses import NUMBER_LOSSES
from penstock.train.metrics import METRICS, Metric


def callback_location(name: str) -> str:
    """Where the callback is that a job names: one of Penstock's, or FILE.py:NAME or PACKAGE.MODULE:NAME."""
    return name if ":" in name else CALLBACKS.location(name)


@dataclass(frozen=True)
class UserFunctions:
    """The functions of a run, each with its name."""

    loss: "UserLoss | None" = None
    metrics: tuple[Metric, ...] = ()
    callbacks: tuple[tuple[str, Any], ...] = ()
    """Functions or objects to call, or classes of such objects."""


NO_FUNCTIONS = UserFunctions()


@dataclass(frozen=True)
class GivenFunctions:
    """Functions that were passed as objects, which no job names; None: the argument was left out."""

    loss: Callable[..., Any] | None = None
    metrics: tuple[Callable[..., Any], ...] | None = None
    callbacks: tuple[Any, ...] | None = None

    def names(self) -> dict[str, list[str]]:
        """By argument, the names of the functions, which a run folder keeps."""
        found = {
            "loss": [] if self.loss is None else [name_of(self.loss)],
            "metrics": [name_of(each) for each in self.metrics or ()],
            "callbacks": [name_of(each) for each in self.callbacks or ()],
        }
        return {argument: names for argument, names in found.items() if names}


NOTHING_GIVEN = GivenFunctions()


class UserLoss:
    """A user's loss: called with outputs and labels, it returns a number for each row, or their mean."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._function = name, function

    def __call__(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The losses of the rows, or one number."""
        with code_at_fault(f"Loss {self.name}"):
            losses = self._function(outputs, labels)
        if not isinstance(losses, torch.Tensor):
            raise PenstockError(
                f"Loss {self.name} returned a {type(losses).__name__}: it must return a tensor.",
                code="user-code-failed",
            )
        if outputs.requires_grad and not losses.requires_grad:
            raise PenstockError(
                f"Loss {self.name} returned a tensor without a gradient: compute it from the outputs with torch's"
                " functions, without detach() or item().",
                code="user-code-failed",
            )
        if losses.dim() > 1 or (losses.dim() == 1 and losses.shape[0] != outputs.shape[0]):
            raise PenstockError(
                f"Loss {self.name} returned shape {tuple(losses.shape)} for {outputs.shape[0]} rows: return one number"
                " for each row, or their mean.",
                code="shape-mismatch",
            )
        return losses

    def by_row(self, losses: torch.Tensor) -> torch.Tensor:
        """The losses by row; an error where the function returned only a mean and rows have weights."""
        if losses.dim() == 0:
            raise PenstockError(
                f"Loss {self.name} returned one number for the batch, and the sampler weighs its rows: return one for"
                " each row (reduction='none').",
                code="unsupported-combination",
            )
        return losses


def functions_of(job: Job, given: GivenFunctions = NOTHING_GIVEN, training: bool = True) -> UserFunctions:
    """A job's functions, imported or passed as objects; without loss and callbacks unless for `training`."""
    for name in (each for each in job.metrics if each in METRICS):
        raise PenstockError(
            f"`metrics` names {name!r}, which is one of Penstock's: leave it out, or set `metric` to it to choose the"
            " best model by it. Functions of your own are FILE.py:NAME.",
            code="duplicate",
        )
    metrics = {_last(name): imported_callable(name, "Metric") for name in job.metrics}
    metrics |= {name_of(each): each for each in given.metrics or ()}
    if len(metrics) < len(job.metrics) + len(given.metrics or ()):
        raise PenstockError("Two of `metrics` have the same name: rename one of them.", code="duplicate")
    for name in metrics:
        if name in METRICS:
            raise PenstockError(f"Metric {name!r} is one of Penstock's: rename your function.", code="duplicate")
    own = tuple(_metric(name, function) for name, function in metrics.items())
    if not training:
        return UserFunctions(metrics=own)
    loss = given.loss
    if loss is None and job.loss is not None and job.loss not in {*NUMBER_LOSSES, *LINK_LOSSES}:
        loss = imported_callable(job.loss, "Loss")
    if isinstance(loss, type):
        raise PenstockError(
            f"The loss is the class {loss.__name__}: give a function, or an object such as {loss.__name__}().",
            code="wrong-type",
        )
    for each in given.callbacks or ():
        if not callable(each):
            raise PenstockError(
                f"Callback {each!r} cannot be called: give a function that takes an epoch's result, or an object with"
                " __call__.",
                code="wrong-type",
            )
    named = [(name, imported_callable(callback_location(name), "Callback")) for name in job.callbacks]
    called = (*named, *((name_of(each), each) for each in given.callbacks or ()))
    return UserFunctions(None if loss is None else UserLoss(name_of(loss), loss), own, called)


def check_given_again(known: object, given: GivenFunctions, run: str) -> None:
    """Refuse to resume a run without the objects that it was started with; callbacks may be other ones, or []."""
    names = given.names()
    before: Mapping[str, Any] = known if isinstance(known, dict) else {}
    for argument in ("loss", "metrics", "callbacks"):
        wanted, found = before.get(argument, []), names.get(argument, [])
        if wanted == found or (argument == "callbacks" and given.callbacks is not None):
            continue
        raise PenstockError(
            f"{run} was started with {argument} {', '.join(wanted) or 'by name alone'}, not"
            f" {', '.join(found) or 'without'}: give `{argument}` again in ps.train(resume=...), as they were.",
            code="mismatched-inputs",
        )


def own_metric(name: str, functions: UserFunctions) -> Metric | None:
    """The metric of the user's with that name."""
    return next((metric for metric in functions.metrics if metric.name == name), None)


def without_given_metric(job: Job, known: object, functions: Iterable[str]) -> Job:
    """The job of a run that is used without the metric object that it was evaluated by: the task's
    own metric is used.
    """
    before = known.get("metrics", []) if isinstance(known, dict) else []
    return job.model_copy(update={"metric": "auto"}) if job.metric in set(before) - set(functions) else job


def name_of(function: Any) -> str:
    """What a function or an object of the user's is called."""
    found = getattr(function, "__name__", None)
    return str(found) if isinstance(found, str) else type(function).__name__


def _metric(name: str, function: Callable[..., Any]) -> Metric:
    better: Any = getattr(function, "better", "higher")
    if better not in ("higher", "lower"):
        raise PenstockError(
            f"Metric {name}: `better` is {better!r}{nearest(str(better), ('higher', 'lower'))}", code="invalid-value"
        )

    def compute(outputs: Any, labels: Any) -> float:
        with code_at_fault(f"Metric {name}"):
            found = function(outputs) if labels is None else function(outputs, labels)
        value = np.asarray(found)
        if value.size != 1 or value.dtype.kind not in "fiub":
            shown = repr(found) if value.size == 1 else f"a {type(found).__name__} of shape {value.shape}"
            raise PenstockError(f"Metric {name} returned {shown}: it must return a number.", code="user-code-failed")
        return float(value.reshape(()))

    return Metric(name, better, lambda task: True, compute, "ranks")


def _last(location: str) -> str:
    return location.rpartition(":")[2]
