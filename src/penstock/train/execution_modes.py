"""The execution modes, and the choice of one for a session.

A new mode is one entry here and one folder or file of its own: how it fits a session (does it train on a device, are
its steps captured, is it shared among workers, which samplers are its own), what it supports, and how it is made.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.registry import Registry
from penstock.sampling.entry import SamplerEntry
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.execution.loaded import ExplainedExecution, LoadedExecution, SharedExecution
from penstock.train.execution.support import (
    CAPTURED,
    CAPTURED_SHARED,
    EVERYTHING,
    EXPLAINED,
    SHARED,
    Support,
    demands_of,
    reasons_against,
)
from penstock.train.session import Execution, Session
from penstock.train.steps.group import WorkerGroup
from penstock.train.whole.execution import WholeExecution
from penstock.train.whole.shared.execution import SharedWholeExecution
from penstock.train.whole.steps import WHOLE, WHOLE_SHARED

if TYPE_CHECKING:
    from penstock.train.device.placed import Placed

Make = Callable[[Session, Any, Any], Execution]
"""(session, its `Placed` graph or None, its `WorkerGroup` or None) -> its execution."""


@dataclass(frozen=True)
class ExecutionMode:
    """An execution mode: the sessions that it is for, what it supports, and how it is built."""

    name: str
    make: Make
    support: Support = EVERYTHING
    on_device: bool = False
    """Whether it is for sessions that train on a device."""
    captured: bool = False
    """Whether it is for sessions whose steps are captured."""
    among_workers: bool = False
    """Whether it is for sessions that several workers share."""
    samplers: Callable[[SamplerEntry], bool] | None = None
    """Whether only this mode, of those that fit a session, executes a sampler; None: it executes those that no other
    mode claims.
    """
    places_itself: bool = False
    """Whether it copies to the device by itself what it needs there, so that no graph is placed before."""
    reads_rows_once: bool = False
    """Whether feature rows are read once, before the first step, and kept."""


def needs_placement(sampler: str) -> bool:
    """Whether a graph must be placed on a device before the execution mode is chosen."""
    return not any(mode.places_itself for mode in _claiming(sampler))


def reads_rows_again(sampler: str) -> bool:
    """Whether feature rows are read for every batch, rather than once for all steps."""
    return not any(mode.reads_rows_once for mode in _claiming(sampler))


def choose_execution(session: Session, placed: "Placed | None" = None, group: WorkerGroup | None = None) -> Execution:
    """Choose the execution mode of a session, on the host or on a device, alone or among workers, and build it."""
    sampler = session.job.sampler
    for mode in _claiming(sampler) or [mode for mode in _modes() if mode.samplers is None]:
        fits = (mode.on_device, mode.captured, mode.among_workers) == (
            placed is not None,
            placed is not None and placed.is_captured,
            group is not None,
        )
        if fits:
            reasons = reasons_against(mode.support, demands_of(session))
            if reasons:
                remedy = "; change that, or use sampler neighbour" if mode.samplers else ""
                raise PenstockError(
                    f"The run cannot be executed as {mode.name}: {', '.join(reasons)}{remedy}.",
                    code="unsupported-combination",
                )
            return mode.make(session, placed, group)
    raise PenstockError(
        f"Sampler {sampler} is not executed on this device or among several workers: use neighbour.",
        code="unsupported-combination",
    )


def _claiming(sampler: str) -> list[ExecutionMode]:
    """The modes of which one must execute a sampler; none where every other mode can."""
    entry = SAMPLERS[sampler]
    return [mode for mode in _modes() if mode.samplers is not None and mode.samplers(entry)]


def _modes() -> list[ExecutionMode]:
    """All modes, including those of installed packages: a mode is chosen by its properties, not by its name."""
    return [EXECUTION_MODES[name] for name in EXECUTION_MODES.names()]


def _device(session: Session, placed: Any, group: WorkerGroup | None) -> Execution:
    """The execution of a session's graph on a device, captured or launched, alone or in a group."""
    # Imported here, because Triton is only needed with a device.
    from penstock.train.device import execution
    from penstock.train.steps.triples import reasons_against_capture

    if placed.is_captured:
        captured = execution.CapturedExecution(session, placed)
        return captured if group is None else execution.CapturedSharedExecution(session, captured, group)
    if group is not None:
        return execution.DeviceSharedExecution(session, execution.DeviceExecution(session, placed), group)
    # Triples need no graph on the device, so this does not depend on a placement.
    kind = execution.DeviceExecution if reasons_against_capture(session) else execution.TripleExecution
    return kind(session, placed)


def _shared(session: Session, placed: "Placed | None", group: Any) -> Execution:
    return SharedExecution(session, LoadedExecution(session), group)


def _makes_none(sampler: SamplerEntry) -> bool:
    return not sampler.makes_batches


_WHOLE = ExecutionMode(
    "whole",
    lambda session, placed, group: WholeExecution(session),
    WHOLE,
    samplers=_makes_none,
    places_itself=True,
    reads_rows_once=True,
)

EXECUTION_MODES: Registry[ExecutionMode] = Registry(
    "execution mode",
    "penstock.execution_modes",
    {
        mode.name: mode
        for mode in (
            ExecutionMode("loaded", lambda session, placed, group: LoadedExecution(session)),
            ExecutionMode("device", _device, on_device=True),
            ExecutionMode("captured", _device, CAPTURED, on_device=True, captured=True),
            ExecutionMode("shared", _shared, SHARED, among_workers=True),
            ExecutionMode(
                "explained",
                lambda session, placed, group: ExplainedExecution(session, group),
                EXPLAINED,
                among_workers=True,
                samplers=lambda each: each.local,
            ),
            ExecutionMode("device-shared", _device, SHARED, on_device=True, among_workers=True),
            ExecutionMode(
                "captured-shared", _device, CAPTURED_SHARED, on_device=True, captured=True, among_workers=True
            ),
            _WHOLE,
            replace(
                _WHOLE,
                name="whole-shared",
                make=lambda session, placed, group: SharedWholeExecution(session, group),
                support=WHOLE_SHARED,
                among_workers=True,
            ),
        )
    },
    ExecutionMode,
)
