"""Optimisers and schedules from torch, by name."""

import functools
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from penstock.errors import PenstockError, nearest
from penstock.nn.eager import eager
from penstock.traced import is_gpu
from penstock.train.job import Job

_UNFIT = {
    "LBFGS": "computes a batch several times in a closure",
    "SparseAdam": "takes sparse gradients only (vertex embeddings have embedding_optimiser)",
}


def make_optimiser(
    parameters: Iterable[torch.nn.Parameter], job: Job, device: torch.device | None = None
) -> torch.optim.Optimizer:
    """The class of torch.optim that the job names, with its rate, decay and options.

    On a GPU its step is one fused kernel where torch has one, and its rate lies on the device, where captured steps
    read it.
    """
    chosen = _optimiser_class(job)
    if job.optimiser in _UNFIT:
        raise PenstockError(
            f"Optimiser {job.optimiser} {_UNFIT[job.optimiser]}: choose another, such as Adam.",
            code="unsupported-combination",
        )
    options = {
        "lr": job.lr,
        **({"weight_decay": job.weight_decay} if job.weight_decay else {}),
        **(_on_device(chosen) if device is not None and is_gpu(device) else {}),
        **job.optimiser_options,
    }
    if options.get("fused"):
        chosen = in_pieces(chosen)
    learned = list(parameters)
    if not learned:
        raise PenstockError("The model has no parameters: give one that has weights to learn.", code="invalid-value")
    try:
        optimiser: torch.optim.Optimizer = eager(chosen, bool(options.get("differentiable")))(learned, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PenstockError(
            f"Optimiser {job.optimiser} does not take {options}: {error}.", code="invalid-value"
        ) from None
    if device is not None:
        rates_on_device(optimiser, device)
    return optimiser


def reasons_against_capture(job: Job) -> list[str]:
    """The reasons why steps of the job's optimiser cannot be recorded, and skipped by a flag on the device."""
    kind, options = _optimiser_class(job), job.optimiser_options
    reasons = []
    if _counts_on_host(kind) or not options.get("capturable", True):
        reasons.append(f"optimiser {job.optimiser} as it is set counts its steps on the host")
    if options.get("dampening"):
        reasons.append("the first step of a dampened momentum differs from the others")
    return reasons


def _optimiser_class(job: Job) -> Any:
    return _named(_classes(torch.optim, torch.optim.Optimizer), job.optimiser, "optimiser")


def _on_device(kind: Any) -> dict[str, bool]:
    """The options by which a step is one kernel of a GPU, which the host need not count; empty where torch has none."""
    named = inspect.signature(kind).parameters
    if "fused" not in named or _counts_on_host(kind):
        return {}
    return {name: True for name in ("fused", "capturable") if name in named}


_LEAST, _MOST = 4096, 65536
"""The least and the most numbers of a piece."""
_AT_ONCE = 110, 110, 64, 48, 36, 30
"""Tensors that one launch of torch's fused kernel takes, by the lists of tensors that it works on."""


def in_pieces(kind: Any) -> Any:
    """A class of optimisers whose fused step is given weights in pieces: the same operations on the same numbers.

    torch's kernel gives a block of threads 65,536 numbers of one tensor, so that a small model keeps a few processors
    of a GPU busy and the others idle. Every piece has a count of steps, of which the first is the weight's own.
    """
    if "state_steps" not in inspect.signature(getattr(kind, "_init_group", lambda: None)).parameters:
        return kind

    @functools.wraps(kind._init_group)
    def init_group(self: Any, group: Any, *lists: list[Any]) -> Any:
        result = kind._init_group(self, group, *lists)
        learned, steps = lists[0], lists[-1]
        at_once = _AT_ONCE[min(len(_AT_ONCE) - 1, sum(map(bool, lists[:-1])))]
        # Each weight has one piece more than its share at most; those of many weights take several launches anyway.
        room = at_once - len(learned) if 2 * len(learned) <= at_once else at_once
        size = -(-sum(each.numel() for each in learned) // (4 * room)) * 4
        pieces = [list[Any]() for _ in lists]
        for place, weight in enumerate(learned):
            whole = [each[place] if each else None for each in lists[:-1]]
            can_cut = all(each is None or each.is_contiguous() for each in whole)
            count = max(1, -(-weight.numel() // max(_LEAST, size))) if can_cut else 1
            for made, found in zip(pieces, whole, strict=False):
                if found is not None:
                    made.extend(found.detach().view(-1).split(max(_LEAST, size)) if count > 1 else [found])
            pieces[-1].extend([steps[place]] * count)
        if size < _MOST and len(pieces[0]) > len(learned):
            # Counts of steps are advanced piece by piece, so that no two pieces may have one.
            copies = iter(torch.stack(pieces[-1]).unbind())
            seen = set[int]()
            for place, copied in enumerate(copies):
                step = pieces[-1][place]
                pieces[-1][place] = copied if id(step) in seen else step
                seen.add(id(step))
            for given, made in zip(lists, pieces, strict=True):
                given[:] = made
        return result

    return type(kind.__name__, (kind,), {"_init_group": init_group, "__module__": kind.__module__})


def _counts_on_host(kind: Any) -> bool:
    """Whether a class of torch keeps a count of steps which it cannot keep on a GPU, by what torch declares."""
    counts = "state_steps" in inspect.signature(getattr(kind, "_init_group", lambda state_steps: None)).parameters
    return counts and "capturable" not in inspect.signature(kind).parameters


def keep_ways(optimiser: torch.optim.Optimizer, state: Any) -> None:
    """Keep this optimiser's own settings (fused, capturable) when a state is loaded that was stored
    on another device.
    """
    for own, stored in zip(optimiser.param_groups, state["param_groups"], strict=False):
        stored.update({name: own[name] for name in ("fused", "capturable", "foreach") if name in own})


def load_optimiser(optimiser: torch.optim.Optimizer, state: Any) -> None:
    """Load a stored state; ValueError where a shape does not fit, which torch would find a step later."""
    optimiser.load_state_dict(state)
    for parameter, values in optimiser.state.items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and not _fits(value, parameter):
                shapes = f"{tuple(value.shape)} where the parameter has {tuple(parameter.shape)}"
                raise ValueError(f"{name} of the optimiser is of shape {shapes}")


def _fits(value: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether a state tensor has the shape of its parameter, of its rows or columns, or is one number."""
    if value.numel() == 1:
        return True
    sizes = zip(value.shape, parameter.shape, strict=False)
    return value.dim() == parameter.dim() and all(own in (1, whole) for own, whole in sizes)


def rates_on_device(optimiser: torch.optim.Optimizer, device: torch.device) -> None:
    """Store learning rates as tensors on a GPU, if the optimiser's steps can be captured; repeated after a checkpoint
    is loaded.
    """
    for group in optimiser.param_groups:
        is_there = isinstance(group["lr"], torch.Tensor) and group["lr"].device.type == device.type
        if is_gpu(device) and not is_there and (group.get("fused") or group.get("capturable")):
            group["lr"] = torch.tensor(float(group["lr"]), device=device)


def make_schedule(optimiser: torch.optim.Optimizer, job: Job) -> LRScheduler | None:
    """The class of torch.optim.lr_scheduler that the job names."""
    if job.schedule is None:
        return None
    known = _classes(torch.optim.lr_scheduler, LRScheduler)
    if job.schedule == "ReduceLROnPlateau" and job.schedule_options.get("mode", "min") != "min":
        raise PenstockError(
            "Schedule ReduceLROnPlateau always lowers its metric's error here: leave out its mode.",
            code="conflicting-options",
        )
    try:
        schedule: LRScheduler = _named(known, job.schedule, "schedule")(optimiser, **job.schedule_options)
    except (TypeError, ValueError) as error:
        raise PenstockError(
            f"Schedule {job.schedule} does not take {job.schedule_options}: {error}.", code="invalid-value"
        ) from None
    return schedule


def step_schedule(schedule: LRScheduler | None, metric: float | None, better: str) -> None:
    """Step the schedule at the end of an epoch. ReduceLROnPlateau is given the validation metric as an error to
    minimise.

    A metric that should be high is at most 1, and becomes 1 - metric: its negative would not do, since relative
    thresholds treat equal negative values as improvements.
    """
    if isinstance(schedule, ReduceLROnPlateau):
        if metric is not None:
            schedule.step(1 - metric if better == "higher" else metric)
    elif schedule is not None:
        schedule.step()


def _classes(module: Any, base: type) -> dict[str, Any]:
    found = {name: value for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)}
    return {name: value for name, value in found.items() if value is not base and not name.startswith("_")}


def _named(known: dict[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise PenstockError(f"torch has no {what} {name!r}{nearest(name, sorted(known))}", code="unknown-name")
    return known[name]
