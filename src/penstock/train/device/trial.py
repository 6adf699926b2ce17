"""Whether captured steps do what launched ones do, for code that nothing is known of: tried before a run begins.

A module or loss of the user's may read values on the host, change something there, or depend on rows that pad a batch;
an optimiser without a fused kernel may do so as well. So two steps, one of them on a batch that is not full, are
launched, recorded and replayed from the same weights, and loss and gradients are compared. The session stays as it was.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from penstock.pipeline.schedule import START, Position, Schedule
from penstock.pipeline.stages import Loaded
from penstock.sampling.device.streams import rest
from penstock.train.device.execution import engine_of
from penstock.train.device.placed import Placed
from penstock.train.execution.support import demands_of
from penstock.train.session import Session, state_kept
from penstock.train.steps.engine import Course
from penstock.train.steps.one_by_one import BatchRows, loss_of
from penstock.train.steps.parts import StepGradients
from penstock.train.steps.sources import WholeOrder, plain_values
from penstock.train.steps.update import Update, make_step, prepare_skipping

_CLOSE = {"bfloat16": 2e-2, "float16": 2e-2}
"""By compute type, how far gradients may be apart, as a share of their norm."""
_USUAL_CLOSE = 1e-3


def needs_trial(session: Session) -> bool:
    """Whether it must be tried if a session's steps can be captured."""
    demands = demands_of(session)
    fused = all(group.get("fused") for group in session.optimiser.param_groups)
    return demands.user_loss or not demands.library_model or not fused


def reason_against_replay(session: Session, placed: Placed) -> str | None:
    """Why captured steps of a session with a placed graph would not do what launched ones do; None where they do."""
    size = session.task.batch_size
    schedule = Schedule(session.task.items[: size + size // 2], size, session.job.draw_seed, 1)
    operations = _Operations(session.inputs.device)
    try:
        with state_kept(session), operations:
            return _tried(session, placed, schedule, operations)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        return f"a captured step failed when it was tried ({type(error).__name__}: {said})"
    finally:
        rest(session.inputs.device)


class _Found(NamedTuple):
    """The loss and the gradients of a step."""

    loss: float
    gradients: list[Tensor | None]
    draws_on_host: bool = False


def _tried(session: Session, placed: Placed, schedule: Schedule, operations: "_Operations") -> str | None:
    before = _host_state(session)
    launched = [
        _launched(session, Loaded(planned, session.task.sample(planned)), operations)
        for planned in schedule.from_position()
    ]
    # A recording that fails for it would leave torch's generator and allocator in the middle of a capture.
    if operations.waiting is not None:
        return f"the model or the loss {operations.waiting}"
    if any(each.draws_on_host for each in launched):
        return "the model or the loss draws random numbers on the host"
    if (changed := _changed(before, _host_state(session))) is not None:
        return changed
    update = _KeptGradients(session)
    course = Course(schedule, START, lambda _: 1, lambda *_: None)
    engine = engine_of(session, placed, course, update, WholeOrder(schedule))
    with ExitStack() as closed:
        # Slots are given back where recording fails as well.
        closed.push(engine.__exit__)
        engine.__enter__()
        for _ in engine:
            pass
    close = _CLOSE.get(session.job.compute_type, _USUAL_CLOSE)
    if len(update.found) != len(launched):
        return "not every captured step was made when they were tried"
    if not all(_is_close(mine, theirs, close) for mine, theirs in zip(update.found, launched, strict=True)):
        return "losses or gradients of a captured step, whose batch is padded, differ from those of a launched one"
    return None


def _launched(session: Session, loaded: Loaded, operations: "_Operations") -> _Found:
    """The loss and gradients of a launched step."""
    carrier, batch = session.inputs.carrier, loaded.batch
    buffers = carrier.gather(batch)
    session.task.label(batch)
    carrier.transfer(batch)
    carrier.arrive(batch)
    rows = BatchRows.of(session, batch)
    with operations.watching(session.model):
        loss = loss_of(session, loaded, rows.x)
    drawn = _has_drawn(session, loaded.planned.key.purpose("dropout"))
    session.backward(loss)
    found = _Found(float(loss.detach()), _copied([each.grad for each in session.learned.parameters()]), drawn)
    session.optimiser.zero_grad(set_to_none=True)
    for buffer in buffers:
        carrier.give_back(buffer)
    return found


class _KeptGradients(Update):
    """Makes no step: the optimiser's is recorded and skipped, and gradients are kept."""

    most = 1

    def __init__(self, session: Session) -> None:
        self._session, self.found = session, list[_Found]()

    def prepare(self) -> None:
        prepare_skipping(self._session.optimiser)

    def take(self, slot: Any, found: StepGradients) -> list[Tensor | None]:
        gradients = _copied([each.grad for each in self._session.learned.parameters()])
        make_step(self._session, torch.ones_like(found.loss))
        return gradients

    def settled(self, kept: Any, position: Position, losses: list[float]) -> list[float]:
        self.found.append(_Found(losses[0], _copied(kept)))
        return losses


def _copied(gradients: list[Tensor | None]) -> list[Tensor | None]:
    return [None if each is None else each.detach().clone() for each in gradients]


def _is_close(mine: _Found, theirs: _Found, close: float) -> bool:
    """Whether two steps differ by rounding alone."""
    pairs = list(zip(mine.gradients, theirs.gradients, strict=True))
    if any((one is None) != (other is None) for one, other in pairs):
        return False
    known = [(one.float(), other.float()) for one, other in pairs if one is not None and other is not None]
    whole = sum(float(other.norm()) ** 2 for _, other in known) ** 0.5
    # A gradient that is zero but for rounding is compared with those of all parameters.
    apart = [float((one - other).norm()) <= close * (float(other.norm()) + close * whole) for one, other in known]
    return all(apart) and abs(mine.loss - theirs.loss) <= close * max(1.0, abs(theirs.loss))


# What a module of the user's changes on the host.


class _HostState(NamedTuple):
    values: list[Any]
    buffers: list[Tensor]
    generators: list[Any]


def _host_state(session: Session) -> _HostState:
    """What steps on a GPU should leave as it is; models of the library do."""
    if getattr(session.model, "layerwise", False):
        return _HostState([], [], [])
    drawn: Any = np.random.get_state(legacy=False)
    generators = [random.getstate(), drawn["state"]["key"].tobytes(), drawn["state"]["pos"]]
    return _HostState(plain_values(session.model), [each.clone() for each in session.model.buffers()], generators)


def _has_drawn(session: Session, key: np.uint64) -> bool:
    """Whether a step of a GPU has drawn from torch's generator of the host since the step's key seeded it."""
    seeded = torch.Generator().manual_seed(int(key) & (1 << 63) - 1)
    on_gpu = session.inputs.on_gpu
    return on_gpu and not torch.equal(torch.default_generator.get_state(), seeded.get_state())


def _changed(before: _HostState, after: _HostState) -> str | None:
    """Why steps of a module cannot be replayed that changes something while it computes."""
    if before.generators != after.generators:
        return "the module draws random numbers on the host"
    if before.values != after.values:
        return "the module changes its attributes in every step"
    pairs = zip(before.buffers, after.buffers, strict=True)
    if any(not torch.equal(one, other) for one, other in pairs):
        return "the module changes its buffers in every step, which a step that is skipped must not do"
    return None


_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
"""Operators whose sizes depend on numbers only where an index is a mask."""
_WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_COPYING = ("aten::where", "aten::copy_", "aten::_to_copy")
"""Operators that copy a single number of the host to the device; others that compute with one pass it to a kernel."""


class _Operations(TorchDispatchMode):
    """Within it, what torch's operators draw is 1, and nothing is dropped: padded tensors would draw other numbers.

    While operators are watched, `waiting` says what the first does that no recording can: it waits for numbers of the
    device, their values or a size that depends on them, or copies numbers from the host.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waiting: str | None = None
        self._device, self._is_watched = device.type, False

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch what a module of the user's computes within the context, and what follows it, such as the loss; what
        comes before is the library's.
        """
        users = getattr(model, "module", None)

        def begin(*_: object) -> None:
            self._is_watched = True

        begins = users.register_forward_pre_hook(begin) if users is not None else model.register_forward_hook(begin)
        try:
            yield
        finally:
            begins.remove()
            self._is_watched = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if self._is_watched and self.waiting is None:
            self.waiting = self._reason(func, args, made)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return made
        if func is torch.ops.aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(made[1])
        if isinstance(made, Tensor) and made.is_floating_point():
            made.fill_(1)
        return made

    def _reason(self, func: Any, args: Any, made: Any) -> str | None:
        """What an operator does for which the host waits until the device is there; None where it does not."""
        given = [each for each in tree_leaves(args) if isinstance(each, Tensor)]
        near = [each for each in given if self._is_on_device(each)]
        if not near and not self._is_on_device(made):
            return None
        name, far = func.name().partition(".")[0], [each for each in given if not self._is_on_device(each)]
        computes = torch.Tag.pointwise in func.tags and name not in _COPYING
        # Tensors that are made of Python's numbers have been copied before they are lifted.
        if name == "aten::lift_fresh" or any(each.dim() or not computes for each in far):
            return f"copies numbers from the host ({func})"
        if name in _INDEXING:
            waits = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        else:
            waits = not _WAITING.isdisjoint(func.tags) or (isinstance(made, Tensor) and not self._is_on_device(made))
        return f"waits for numbers of the device ({func})" if waits or name == "aten::_linalg_check_errors" else None

    def _is_on_device(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.device.type == self._device
