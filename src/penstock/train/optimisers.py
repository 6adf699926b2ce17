"""Optimisers and schedules from torch, by name."""

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
    learned = list(parameters)
    if not learned:
        raise PenstockError("The model has no parameters: give one that has weights to learn.", code="invalid-value")
    try:
        optimiser: torch.optim.Optimizer = eager(chosen)(learned, **options)
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


def prepare_skipping(optimiser: torch.optim.Optimizer) -> None:
    """Make an optimiser's steps fit to be recorded and skipped: on a GPU, rates and counts lie there, and SGD's
    momentum, which torch would take from the first gradients, exists before.
    """
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            if group.get("momentum") and isinstance(optimiser, torch.optim.SGD):
                state = optimiser.state[parameter]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
            if "capturable" in group and is_gpu(parameter.device):
                group["capturable"] = True
                for name, value in optimiser.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor):
                        optimiser.state[parameter][name] = value.to(parameter.device)
        rates_on_device(optimiser, group["params"][0].device)


def step_unless(optimiser: torch.optim.Optimizer, skip: torch.Tensor | None) -> None:
    """Make a step; where `skip`, a number on the device, is not 0, weights and state stay as they were.

    torch's fused steps skip by themselves. For others, everything is copied before the step and restored after it.
    """
    if skip is None or all(group.get("fused") for group in optimiser.param_groups):
        fused: Any = optimiser
        fused.found_inf = None if skip is None else skip[0]
        optimiser.step()
        fused.found_inf = None
        return
    _make_state(optimiser)
    learned = [each for group in optimiser.param_groups for each in group["params"] if each.grad is not None]
    live = [each.detach() for each in learned]
    live += [value for each in learned for value in optimiser.state.get(each, {}).values() if _is_tensor(value)]
    before = [value.clone() for value in live]
    optimiser.step()
    for value, kept in zip(live, before, strict=True):
        value.copy_(torch.where(skip.view(()) != 0, kept, value))


def constants_of(optimiser: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The numbers that a recorded step holds fixed, such as a momentum; rates on the device are not."""
    return [
        {name: value for name, value in group.items() if name != "params" and not _is_tensor(value)}
        for group in optimiser.param_groups
    ]


def _make_state(optimiser: torch.optim.Optimizer) -> None:
    """Make the state that parameters have before their first step, as torch would at the beginning of that step."""
    make: Any = optimiser._init_group  # type: ignore[attr-defined]
    for group in optimiser.param_groups:
        if any(each.grad is not None and not optimiser.state.get(each) for each in group["params"]):
            make(group, *([] for _ in range(len(inspect.signature(make).parameters) - 1)))
    if isinstance(optimiser, torch.optim.SGD):
        prepare_skipping(optimiser)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _optimiser_class(job: Job) -> Any:
    return _named(_classes(torch.optim, torch.optim.Optimizer), job.optimiser, "optimiser")


def _on_device(kind: Any) -> dict[str, bool]:
    """The options by which a step is one kernel of a GPU, which the host need not count; empty where torch has none."""
    named = inspect.signature(kind).parameters
    if "fused" not in named or _counts_on_host(kind):
        return {}
    return {name: True for name in ("fused", "capturable") if name in named}


def _counts_on_host(kind: Any) -> bool:
    """Whether a class of torch keeps a count of steps which it cannot keep on a GPU, by what torch declares."""
    counts = "state_steps" in inspect.signature(getattr(kind, "_init_group", lambda state_steps: None)).parameters
    return counts and "capturable" not in inspect.signature(kind).parameters


def keep_ways(optimiser: torch.optim.Optimizer, state: Any) -> None:
    """Keep this optimiser's settings (fused, capturable) when another device's state is loaded."""
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
    """Store rates as tensors on a GPU if steps can be captured; again after a checkpoint is loaded."""
    for group in optimiser.param_groups:
        is_there = _is_tensor(group["lr"]) and group["lr"].device.type == device.type
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
