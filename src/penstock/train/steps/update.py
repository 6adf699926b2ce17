"""Updates with the gradients of a step: by this process, by all workers with their sum, or by parameter servers.

`make_step` is the only place where a session's optimiser makes its step.
"""

import inspect
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.pipeline.schedule import Position
from penstock.sampling.device.slot import Slot
from penstock.sampling.device.streams import rest
from penstock.store.device.copies import zeros_for_copies
from penstock.store.device.moments import Moment
from penstock.traced import is_gpu
from penstock.train.optimisers import rates_on_device
from penstock.train.session import Session
from penstock.train.steps.group import DeviceSums, WorkerGroup
from penstock.train.steps.parts import LearnedRows, Source, StepGradients
from penstock.train.steps.runner import Launch, LaunchStream, Runner, Work
from penstock.wire.coflows import batch_order, within_batch


def make_step(
    session: Session,
    skip: Tensor | None = None,
    rows: LearnedRows | None = None,
    clip: Callable[[Session], None] | None = None,
) -> None:
    """Make the optimiser's step with the gradients of the parameters, and that of learned embeddings.

    `skip` is as `Session.backward` returns it: where it is 1 on the device, the step is skipped. `clip` replaces the
    function that clips gradients as the job says.
    """
    if session.job.clip and clip is not None:
        clip(session)
    elif session.job.clip:
        further = [] if rows is None else rows.learned_rows()
        torch.nn.utils.clip_grad_norm_([*session.learned.parameters(), *further], session.job.clip)
    step_unless(session.optimiser, skip)
    if rows is not None:
        rows.learn()


# Steps that can be skipped by a flag on the device, and recorded.


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
                    if isinstance(value, Tensor):
                        optimiser.state[parameter][name] = value.to(parameter.device)
        rates_on_device(optimiser, group["params"][0].device)


def step_unless(optimiser: torch.optim.Optimizer, skip: Tensor | None) -> None:
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
    """The numbers that a recorded step holds fixed, such as a momentum: where they change, it must be recorded again.

    Rates on the device are not among them.
    """
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
    return isinstance(value, Tensor)


class Update(Protocol):
    """What is done with gradients."""

    most: int
    """The most steps of a burst."""
    is_apart: bool = False
    """Whether `apply` is launched after the step's other work, with something else in between."""

    def prepare(self) -> None:
        """Called before anything is recorded, where steps can be skipped."""
        return

    @abstractmethod
    def take(self, slot: Any, found: StepGradients) -> Any:
        """Launch the last of a step's work; recorded. Returns what is kept for the slot."""

    def launched(self, position: Position) -> None:
        """Called after a step was launched; `apply` follows."""
        return

    def apply(self) -> None:
        """Launch the optimiser's step, where `is_apart`; recorded."""
        return

    def burst(self, many: int) -> AbstractContextManager[Any]:
        """A context for a burst of `many` steps, which succeeds or fails as a whole."""
        return nullcontext()

    def look(self, source: Source, first: int, last: int) -> tuple[list[float], int | None]:
        """The result of `Source.look`, agreed by all workers where there are several."""
        return source.look(first, last)

    def settled(self, kept: Any, position: Position, losses: list[float]) -> list[float]:
        """Called when the host has read losses; `kept` and `position` are the last one's. Returns the whole batches'
        losses.
        """
        return losses


_LAUNCHED = 3
"""Steps that are launched before one is recorded, where steps cannot be skipped."""
_FIRST_BURST = 16
BURST_SECONDS = 1.0
"""The target seconds of a burst. The first one has a fixed number of steps, each other at most twice the last one's."""


class LocalUpdate(Update):
    """Makes the step here, with the gradients of this process."""

    def __init__(self, session: Session, burst_seconds: float | None = None, group: WorkerGroup | None = None) -> None:
        """`group` is a group of this one worker, which gets reports of steps after each burst. 0 seconds: bursts of one
        step.
        """
        self._session, self._seconds, self._group = session, burst_seconds, group
        self.most = 1 if burst_seconds == 0.0 else _FIRST_BURST

    def prepare(self) -> None:
        prepare_skipping(self._session.optimiser)

    def take(self, slot: Any, found: StepGradients) -> None:
        make_step(self._session, found.skip, found.rows)

    @contextmanager
    def burst(self, many: int) -> Iterator[None]:
        """Count the steps, and set the length of the next burst by the time of this one."""
        began = time.perf_counter()
        yield
        if self._group is not None:
            self._group.count_steps(self._session, many, self._group.was_asked_to_stop())
        aim = BURST_SECONDS if self._seconds is None else self._seconds
        # Early batches may lack room, after which the rest of their burst is repeated: bursts begin short.
        self.most = max(1, min(2 * self.most, int(aim * many / max(time.perf_counter() - began, 1e-9))))


class LaunchedFirst:
    """Steps that cannot be skipped: the first are launched one by one, and count; then one is recorded and replayed.

    The optimiser's state on the host is kept consistent: its step counts are incremented, and where a number that is a
    constant of the recording has changed, such as a learning rate, the step is recorded again.
    """

    pool = None

    def __init__(self, runner: Runner, work: Work, optimiser: torch.optim.Optimizer) -> None:
        self._runner, self._work, self._optimiser = runner, work, optimiser
        self._launched, self._recorded, self._recorded_with = 0, Launch(work), list[Any]()

    def replay(self) -> None:
        """Do one step: the first are launched, the next one is recorded, and from then on it is replayed."""
        if self._launched < _LAUNCHED or not self._runner.records:
            self._runner.warm_up(self._work, 1)
            self._launched += 1
            return
        counts = [state["step"] for state in self._optimiser.state.values() if _on_host(state.get("step"))]
        constants = constants_of(self._optimiser)
        if self._launched == _LAUNCHED or self._recorded_with != constants:
            before = [count.clone() for count in counts]
            self._recorded, self._recorded_with = self._runner.record(self._work), constants
            self._launched += 1
            for count, value in zip(counts, before, strict=True):
                count.copy_(value)
        self._recorded.replay()
        for count in counts:
            count += 1


def _on_host(count: Any) -> bool:
    return isinstance(count, Tensor) and count.device.type == "cpu"


# What workers sum in each captured step, as one row of numbers on the device: gradients, and the fields of `Agreed`.

_ALIGNED = 4
"""Gradients start at multiples of this many numbers, so that kernels can use vector loads."""


class Agreed(NamedTuple):
    """The numbers after the gradients in the row, summed over all workers, and so the same on each of them."""

    loss: float
    asked: float
    """Workers that had been asked to stop when the burst began."""
    pace: float
    """Seconds per step in the previous burst."""
    ready: float
    """Workers whose gradients may be used."""
    lacking: float
    """Workers whose share of the batch, or of one before it, lacked room."""


_MORE = len(Agreed._fields)
_READY = Agreed._fields.index("ready")


class StepSum:
    """The row that the current step sums, and the sums of each step of the epoch; all at fixed addresses."""

    def __init__(self, session: Session, batches: int, world: int, device: torch.device) -> None:
        self._session, self._world = session, world
        parameters = [parameter for parameter in session.learned.parameters() if parameter.requires_grad]
        rooms = [-(-parameter.numel() // _ALIGNED) * _ALIGNED for parameter in parameters]
        self.numbers = torch.zeros(sum(rooms) + _MORE, dtype=torch.float32, device=device)
        parts = torch.split(self.numbers[:-_MORE], rooms)
        self._gradients = [
            (parameter, part[: parameter.numel()].view_as(parameter))
            for parameter, part in zip(parameters, parts, strict=True)
        ]
        self._more = self.numbers[-_MORE:]
        self._told = torch.zeros(2, dtype=torch.float32, device=device)
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        self._agreed = torch.zeros((batches, _MORE), dtype=torch.float32, device=device)
        self._seen = zeros_for_copies((batches, _MORE), torch.float32, device)

    def begin(self, asked: bool, pace: float) -> None:
        """Set this worker's `asked` and `pace` for the steps of a burst."""
        self._told[0].fill_(float(asked))
        self._told[1].fill_(pace)

    def take(self, slot: Slot, loss: Tensor, skip: Tensor) -> None:
        """Copy this worker's part of a step into the row. A parameter without a gradient has none on any worker."""
        given = [(part, parameter.grad) for parameter, part in self._gradients if parameter.grad is not None]
        torch._foreach_copy_([part for part, _ in given], [gradient for _, gradient in given])
        torch.cat([loss, self._told, (skip == 0).float(), slot.skip], out=self._more)
        # The slot may be refilled by the batch after the next before the sum is complete.
        self._number.copy_(slot.number)

    def apply(self) -> None:
        """Make the optimiser's step with the sums; skipped unless every worker's gradients may be used."""
        for parameter, part in self._gradients:
            parameter.grad = part if parameter.grad is not None else None
        make_step(self._session, (self._more[_READY : _READY + 1] != self._world).float())
        self._agreed.index_copy_(0, self._number, self._more.view(1, _MORE))

    def fetch(self, first: int, last: int) -> Tensor:
        """Launch the copy of some batches' sums to the host."""
        return self._seen[first:last].copy_(self._agreed[first:last], non_blocking=True)


class Snapshot:
    """The weights and the optimiser's state at the start of a burst, which a failed burst restores."""

    def __init__(self, session: Session) -> None:
        states = [value for state in session.optimiser.state.values() for value in state.values()]
        self._live = [parameter.detach() for parameter in session.learned.parameters()]
        self._live += [value for value in states if isinstance(value, Tensor)]
        self._kept = [torch.empty_like(value) for value in self._live]

    def take(self) -> None:
        """Launch the copy of the current values."""
        torch._foreach_copy_(self._kept, self._live)

    def put_back(self) -> None:
        """Launch the restoration of the copied values."""
        torch._foreach_copy_(self._live, self._kept)


class SummedUpdate(Update):
    """All workers make the same step, with the sum of their gradients.

    A step is two recordings with a sum between them: this worker's gradients, and the optimiser's step with all
    workers'. A burst succeeds or fails as a whole: if a worker is lost meanwhile, weights and optimiser are restored to
    the burst's start; if another worker has completed the burst, this one takes its state when they regroup. A share
    that lacks room makes every worker skip that step and the following ones, until its worker has enlarged the room.
    """

    is_apart = True

    def __init__(self, session: Session, group: WorkerGroup, sums: DeviceSums, batches: int) -> None:
        self._session, self._group, self._sums, self._device = session, group, sums, session.inputs.device
        self._row = StepSum(session, batches, group.world, self._device)
        self.most, self._stopping, self._pace = _FIRST_BURST, False, 0.0
        self._before: Snapshot | None = None

    def prepare(self) -> None:
        prepare_skipping(self._session.optimiser)

    def take(self, slot: Any, found: StepGradients) -> None:
        """Copy the gradients into the row that is summed."""
        assert found.skip is not None
        self._row.take(slot.slot, found.loss, found.skip)

    def launched(self, position: Position) -> None:
        """Launch the sum over the workers."""
        with within_batch(batch_order(*position)):
            self._sums.launch(self._row.numbers)

    def apply(self) -> None:
        self._row.apply()

    @contextmanager
    def burst(self, many: int) -> Iterator[None]:
        """Restore weights and optimiser where the burst fails; otherwise report its steps."""
        began, self._before = time.perf_counter(), self._before or Snapshot(self._session)
        self._row.begin(self._group.was_asked_to_stop(), self._pace)
        self._before.take()
        try:
            yield
        except BaseException:
            # The device would wait for ever for a worker that was lost.
            self._sums.abandon()
            rest(self._device)
            self._before.put_back()
            rest(self._device)
            raise
        self._group.count_steps(self._session, many, self._stopping)
        self._pace = (time.perf_counter() - began) / many

    def look(self, source: Source, first: int, last: int) -> tuple[list[float], int | None]:
        """The losses and the first batch that lacked room, by the sums, so that all workers decide alike."""
        computing = LaunchStream.computing(self._device)
        seen, copied = self._row.fetch(first, last), Moment(self._device)
        copied.mark(computing)
        self._sums.finish(copied.has_passed)
        computing.settle()
        agreed = [Agreed(*numbers) for numbers in seen.tolist()]
        self._stopping = agreed[0].asked > 0
        if agreed[0].pace > 0:
            self.most = max(1, int(BURST_SECONDS * self._group.world / agreed[0].pace))
        losses = [each.loss for each in agreed if not each.lacking]
        return losses, first + len(losses) if len(losses) < len(agreed) else None


class ServedUpdate(Update):
    """Parameter servers make the step, or the workers one step at a time: a recorded step ends with its gradients."""

    most = 1

    def __init__(self, session: Session, group: WorkerGroup) -> None:
        self._session, self._group = session, group

    def take(self, slot: Any, found: StepGradients) -> list[Tensor | None]:
        return [parameter.grad for parameter in self._session.learned.parameters()]

    def settled(self, kept: Any, position: Position, losses: list[float]) -> list[float]:
        """Give this worker's gradients and its part of the loss to the group, which makes the step."""
        for parameter, gradient in zip(self._session.learned.parameters(), kept, strict=True):
            parameter.grad = gradient
        with within_batch(batch_order(*position)):
            return [self._group.reduce_and_step(self._session, losses[0])]
