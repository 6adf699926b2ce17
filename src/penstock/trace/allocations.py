"""The allocations and frees of a computation that is traced on meta tensors, in order.

torch's `meta` tensors have shapes and types, go through operations and autograd, and take no memory. torch's
`FakeTensorMode`, which is built on them, would import its compiler: that takes seconds, and more memory than many a
job.
"""

import math
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.errors import PenstockError
from penstock.trace.kernel_rates import StepWork
from penstock.trace.libraries import library_workspaces, memory_inside
from penstock.traced import BATCHES, FEATURES, TOPOLOGY, MemoryPlace, current_category, current_place, memory_for

# The purposes of memory, as predictions list them.

WEIGHTS = "weights"
OPTIMISER = "optimiser state"
ACTIVATIONS = "activations"
GRADIENTS = "gradients"
LIBRARIES = "library workspace"
CONTEXT = "CUDA context"
PROCESS = "process"

CATEGORIES = (
    WEIGHTS,
    OPTIMISER,
    FEATURES,
    TOPOLOGY,
    BATCHES,
    ACTIVATIONS,
    GRADIENTS,
    LIBRARIES,
    CONTEXT,
    PROCESS,
)
"""In the order in which they are listed."""


META = torch.device("meta")


class AllocationEvent(NamedTuple):
    """Memory of a tensor that is allocated (bytes above zero) or freed (below).

    An event of zero bytes is the moment at which a GPU's allocator returns free memory to the driver.
    """

    storage: int
    """Identifies the memory."""
    bytes: int
    moment: str
    """What was computed then."""
    category: str = ""
    """What the memory is for."""
    place: MemoryPlace = MemoryPlace()
    """The GPU stream and memory pool that it belongs to."""


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, new tensors are meta tensors, and the memory of each is recorded until nothing refers to it.

    A tensor's memory lives as long as Python or autograd keeps it, as in a real step, since the same code runs. Real
    tensors are read as meta tensors and not recorded. With `on_device`, tensors on the `meta` device stand for those of
    a GPU; all others belong to the host: they have values, are computed with, and are not recorded.
    """

    def __init__(self, on_device: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[AllocationEvent] = []
        self.host_validates = False
        """Whether validations read the graph from the host."""
        self._on_device, self._phase, self._operation, self._in_step = on_device, "", "", False
        self._alive: dict[int, tuple[int, Any]] = {}
        self._names = 0
        self._updates = False
        self._libraries: set[tuple[str, int, bool]] = set()
        self._layers: list[tuple[int, str]] = []
        """For each layer that was entered, autograd's count of operations then, and the layer's name."""

    @cached_property
    def work(self) -> StepWork:
        """The device work of what was computed during steps."""
        return StepWork()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here, and torch's compiler takes seconds to import."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation on shapes only, and record what it allocates."""
        if self._updates and func is torch.ops.aten._local_scalar_dense.default:
            return 1
        kwargs = dict(kwargs or {})
        if self._on_device and not _concerns_device(args, kwargs):
            return func(*args, **kwargs)
        args = tuple(map(_without_numbers, args))
        kwargs = {name: _without_numbers(value) for name, value in kwargs.items()}
        self._operation, chooses_device = _facts_of(func)
        if chooses_device:
            kwargs |= {"device": META}
            kwargs.pop("pin_memory", None)
        out = rule_for(func)(*args, **kwargs)
        for tensor in tensors_in(out):
            self.note(tensor)
        if self._on_device:
            # The results of an operation exist while it computes.
            self._take_inside(func, args, kwargs)
            if self._in_step:
                self.work.note(func, list(tensors_in((args, kwargs))), list(tensors_in(out)))
        return out

    def note(self, tensor: torch.Tensor) -> None:
        """Record a tensor's memory from now on, unless it is recorded already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._alive.get(key)
        if known is not None and known[1]() is not None:
            return
        size = storage.nbytes()
        if not size:
            return
        self._names += 1
        taken = AllocationEvent(self._names, size, *self._when(), current_place())
        self.events.append(taken)
        self._alive[key] = taken.storage, weakref.ref(storage, lambda _: self._freed(key, taken))

    def _freed(self, key: int, taken: AllocationEvent) -> None:
        self.events.append(taken._replace(bytes=-taken.bytes))
        found = self._alive.get(key)
        if found is not None and found[0] == taken.storage:
            del self._alive[key]

    def _take_inside(self, func: Any, args: Any, kwargs: Any) -> None:
        """Record what a GPU's operation takes internally: memory while it computes, and a library's workspace for each
        stream and each of the two threads that compute, of which one is autograd's for the backward pass.
        """
        place, backward = current_place(), torch._C._current_autograd_node() is not None
        for library, size in library_workspaces(func):
            if size and (library, place.stream, backward) not in self._libraries:
                self._libraries.add((library, place.stream, backward))
                self._names += 1
                self.events.append(AllocationEvent(self._names, size, self._when()[0], LIBRARIES, place))
        sizes = [size for size in memory_inside(func, args, kwargs) if size]
        if sizes:
            taken = [
                AllocationEvent(self._names + 1 + number, size, *self._when(), place)
                for number, size in enumerate(sizes)
            ]
            self._names += len(sizes)
            self.events += taken + [each._replace(bytes=-each.bytes) for each in taken]

    def empty_cache(self) -> None:
        """Record that a GPU's allocator returns free memory to the driver."""
        self.events.append(AllocationEvent(0, 0, self._phase))

    def moves(self, moved: int, picked: int) -> None:
        """Record a kernel of Penstock's that moves so many bytes in order, and so many of rows that it picks."""
        if self._in_step:
            self.work.note_kernel(moved, picked)

    @contextmanager
    def during(self, phase: str, step: bool = False) -> Iterator[None]:
        """Assign what happens within the context to a phase of the run: a `step` of training, or something else."""
        before, self._phase, self._in_step = (self._phase, self._in_step), phase, step
        self._layers.clear()
        try:
            yield
        finally:
            self._phase, self._in_step = before

    @contextmanager
    def updating(self, step: bool = True) -> Iterator[None]:
        """A context for the optimiser's step, or for making its state, in which only step counters and rates need
        values.
        """
        before, self._updates = self._updates, True
        if self._on_device and self._in_step and step:
            self.work.steps += 1
        try:
            with memory_for(OPTIMISER):
                yield
        finally:
            self._updates = before

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Within the context, events name the model's layers."""
        parts = [(name, part) for name, part in model.named_modules() if name and not isinstance(part, nn.ModuleList)]
        hooks = [part.register_forward_pre_hook(self._entering(name)) for name, part in parts]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, name: str) -> Any:
        def enter(*_: Any) -> None:
            self._layers.append((_sequence_number(), name))

        return enter

    def _when(self) -> tuple[str, str]:
        """The current moment in words, and the purpose of allocations."""
        node: Any = torch._C._current_autograd_node()
        layer, category = "", current_category()
        if self._updates:
            direction = "update"
        elif node is not None:
            direction, number, category = "backward", node._sequence_nr(), GRADIENTS
            layer = next((name for first, name in reversed(self._layers) if first <= number), "")
        else:
            direction, layer = ("forward", self._layers[-1][1]) if self._layers else ("", "")
        words = [self._phase, direction, layer, self._operation if direction else ""]
        return ", ".join(each for each in words if each), category or ACTIVATIONS

    @property
    def now(self) -> int:
        """Bytes allocated at this moment."""
        return sum(event.bytes for event in self.events)


def _sequence_number() -> int:
    """The number of operations that autograd has recorded so far."""
    number: int = cast(Any, torch.autograd)._get_sequence_nr()
    return number


def _without_numbers(value: Any) -> Any:
    """An operation's argument with its tensors, also those in a list, as meta tensors."""
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else like(value)
    return type(value)(map(_without_numbers, value)) if type(value) in (list, tuple) else value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among an operation's arguments or results, also in lists and mappings.

    torch's own function for such trees takes longer than the operations on shapes do.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def _concerns_device(args: Any, kwargs: Any) -> bool:
    """Whether an operation reads or makes tensors of the traced device."""
    if kwargs.get("device") == META:
        return True
    return any(each.is_meta for each in tensors_in((args, kwargs)))


@cache
def _facts_of(operation: Any) -> tuple[str, bool]:
    """An operation's name, and whether it takes the device of its results as an argument."""
    schema = operation._schema
    return schema.name.rpartition("::")[2], any(argument.name == "device" for argument in schema.arguments)


class PeakMemory(NamedTuple):
    """The peak of allocated memory, and its moment."""

    bytes: int
    moment: str


def peak_of(events: list[AllocationEvent], unit: int = 1) -> PeakMemory:
    """The peak of allocated memory, each allocation rounded up to whole units."""
    now = most = 0
    moment = ""
    for event in events:
        size = -(-abs(event.bytes) // unit) * unit
        now += size if event.bytes > 0 else -size
        if now > most:
            most, moment = now, event.moment
    return PeakMemory(most, moment)


# Computations that cannot be traced, because they need values of tensors.

_DATA_DEPENDENT = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
"""Errors that torch raises where a shape or a number depends on data."""


class UntraceableError(Exception):
    """A step needs values of tensors, or calls code that does not support meta tensors; the message
    says what failed.
    """


@contextmanager
def traceable() -> Iterator[None]:
    """Raise errors inside the context as `UntraceableError`; the caller then predicts in another way.

    A step that needs values is expected to fail, and an error of Penstock's own explains itself. Any other error is
    logged as a warning with its place: it may be a mistake in the model, which shows when the step is computed, or one
    in the trace, which would go unnoticed otherwise.
    """
    try:
        yield
    except (UntraceableError, MemoryError):
        raise
    except Exception as error:
        cause = error.__cause__ or error
        what = f"{type(cause).__name__}: {' '.join(str(cause).split())[:160]}"
        if not asks_for_numbers(cause) and not isinstance(cause, PenstockError):
            where = traceback.extract_tb(cause.__traceback__)[-1]
            what = f"{what}, at {where.filename}:{where.lineno}"
            warnings.warn(f"Memory could not be traced, for an unexpected reason ({what}).", RuntimeWarning, 3)
        raise UntraceableError(what) from error


def asks_for_numbers(error: BaseException) -> bool:
    """Whether an error is torch's response to an operation that needs values of meta tensors."""
    if isinstance(error, NotImplementedError) or type(error).__name__ in _DATA_DEPENDENT:
        return True
    return isinstance(error, (RuntimeError, TypeError, ValueError)) and "meta" in str(error).lower()


# The shapes of results of frequent operations, by rule.
#
# torch can find them by itself, for many operations in Python code that imports its compiler on the first call. The
# rules here are those of the operations that models and losses consist of; for any other operation torch is asked.

_aten: Any = torch.ops.aten


_ONE_BY_ONE = (
    "abs",
    "bitwise_not",
    "ceil",
    "clamp",
    "clamp_max",
    "clamp_min",
    "cos",
    "erf",
    "elu",
    "exp",
    "expm1",
    "floor",
    "gelu",
    "leaky_relu",
    "log",
    "log1p",
    "neg",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sqrt",
    "tanh",
    "square",
)
"""Elementwise operations."""


_RESHAPING = ("resize_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "detach_", "swapaxes_", "as_strided_")


@cache
def rule_for(operation: Any) -> Callable[..., Any]:
    """The rule of an operation; the operation itself where there is none."""
    name = operation._schema.name.rpartition("::")[2]
    if name.endswith("_") and not name.endswith("__") and name not in _RESHAPING:
        # In-place operations return their first argument; operations on lists return nothing.
        return _itself if operation._schema.returns else _nothing
    # Those that write into given tensors return these.
    given = [each.name for each in operation._schema.arguments if each.is_out]
    if given:
        return lambda *_, **named: named[given[0]] if len(given) == 1 else tuple(named[name] for name in given)
    rule: Callable[..., Any] = _RULES.get(operation, operation)
    return rule


def like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A meta tensor of the same shape."""
    return torch.empty(x.shape, dtype=dtype or x.dtype, device="meta")


def _alike(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return like(x)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _itself(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def _joint(x: Any, y: Any, *_: Any, **__: Any) -> Tensor:
    """The shape of two operands after broadcasting; numbers have no shape."""
    shapes = [tuple(each.shape) if isinstance(each, Tensor) else () for each in (x, y)]
    return torch.empty(np.broadcast_shapes(*shapes), dtype=torch.result_type(x, y), device="meta")


def _quotient(x: Any, y: Any, *_: Any, **__: Any) -> Tensor:
    made = _joint(x, y)
    return made if made.is_floating_point() else made.float()


def _comparison(x: Any, y: Any, *_: Any, **__: Any) -> Tensor:
    return torch.empty(_joint(x, y).shape, dtype=torch.bool, device="meta")


def _mask(x: Tensor) -> Tensor:
    return like(x, torch.bool)


def _chosen(_: Tensor, x: Any, y: Any) -> Tensor:
    return torch.empty(np.broadcast_shapes(_.shape, _joint(x, y).shape), dtype=torch.result_type(x, y), device="meta")


def _picked(x: Tensor, dim: int, index: Tensor) -> Tensor:
    shape = list(x.shape)
    shape[dim] = index.numel()
    return x.new_empty(shape)


def _indexed(x: Tensor, indices: list[Tensor | None]) -> Tensor:
    """Elements picked by index tensors; a mask is assumed to keep everything."""
    given: list[tuple[int, ...] | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            given += [(index.numel(),)] * index.dim()
        else:
            given.append(None if index is None else tuple(index.shape))
    given += [None] * (x.dim() - len(given))
    places = [place for place, shape in enumerate(given) if shape is not None]
    joint = list(np.broadcast_shapes(*(shape for shape in given if shape is not None)))
    kept = [size for place, size in enumerate(x.shape) if place not in places]
    together = places == list(range(places[0], places[0] + len(places)))
    first = places[0] if together else 0
    return x.new_empty([*kept[:first], *joint, *kept[first:]])


def _sorted(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return like(x), like(x, torch.int64)


def _places(x: Tensor) -> Tensor:
    """Positions of non-zero elements, assumed to be all of them."""
    return x.new_empty((x.numel(), x.dim()), dtype=torch.int64)


def _summed(x: Tensor, dims: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    kind = dtype or (x.dtype if x.is_floating_point() else torch.int64)
    return _mean(x, dims, keepdim, dtype=kind)


def _product(_: Any, left: Tensor, right: Tensor, *__: Any, **___: Any) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


def _number(x: Tensor, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return x.new_empty((), dtype=dtype or x.dtype)


def _mean(x: Tensor, dims: list[int] | None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    gone = {dim % x.dim() for dim in (dims or range(x.dim()))}
    sizes = [1 if place in gone else size for place, size in enumerate(x.shape) if keepdim or place not in gone]
    return x.new_empty(sizes, dtype=dtype or x.dtype)


def _log_softmax(x: Tensor, _: int, half_to_float: bool) -> Tensor:
    return like(x, torch.float32 if half_to_float else x.dtype)


def _log_softmax_backward(grad: Tensor, _: Tensor, __: int, dtype: torch.dtype) -> Tensor:
    return like(grad, dtype)


def _cross_entropy(x: Tensor, true: Tensor, _: Any = None, __: Any = None, reduction: int = 1) -> Tensor:
    kind = torch.result_type(x, true)
    return like(x, kind) if reduction == 0 else x.new_empty((), dtype=kind)


def _nll_loss(x: Tensor, target: Tensor, _: Any, reduction: int, __: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(target.shape if reduction == 0 else ()), x.new_empty(())


def _second_alike(_: Tensor, x: Tensor, *__: Any, **___: Any) -> Tensor:
    return like(x)


def _range(start: float, end: float, step: float = 1, *, dtype: Any = None, **_: Any) -> Tensor:
    whole = all(isinstance(each, int) for each in (start, end, step))
    kind = dtype or (torch.int64 if whole else torch.get_default_dtype())
    return torch.empty(max(0, math.ceil((end - start) / step)), dtype=kind, device="meta")


def _of_sizes(x: Tensor, sizes: Sequence[int], *_: Any) -> Tensor:
    return x.new_empty(sizes)


def _joined(parts: list[Tensor], dim: int = 0) -> Tensor:
    parts = [part for part in parts if part.dim() > 1 or part.numel()] or parts
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    kind = parts[0].dtype
    for part in parts[1:]:
        kind = torch.promote_types(kind, part.dtype)
    return parts[0].new_empty(shape, dtype=kind)


def _stacked(parts: list[Tensor], dim: int = 0) -> Tensor:
    shape = list(parts[0].shape)
    shape.insert(dim if dim >= 0 else dim + len(shape) + 1, len(parts))
    return parts[0].new_empty(shape)


def _layer_norm(x: Tensor, shape: list[int], *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    kept = [*x.shape[: x.dim() - len(shape)], *([1] * len(shape))]
    return like(x), x.new_empty(kept, dtype=torch.float32), x.new_empty(kept, dtype=torch.float32)


def _layer_norm_backward(
    _: Tensor, x: Tensor, __: list[int], ___: Tensor, ____: Tensor, weight: Any, bias: Any, mask: list[bool]
) -> tuple[Tensor | None, ...]:
    return tuple(like(each) if wanted else None for each, wanted in zip((x, weight, bias), mask, strict=True))


def _batch_norm(x: Tensor, _: Any, __: Any, ___: Any, ____: Any, training: bool, *_____: Any) -> tuple[Tensor, ...]:
    kept = x.shape[1] if training else 0
    return like(x), x.new_empty(kept, dtype=torch.float32), x.new_empty(kept, dtype=torch.float32)


def _batch_norm_backward(_: Tensor, x: Tensor, *given: Any) -> tuple[Tensor | None, ...]:
    columns, mask = x.shape[1], given[-1]
    made = like(x), x.new_empty(columns), x.new_empty(columns)
    return tuple(each if wanted else None for each, wanted in zip(made, mask, strict=True))


def _typed_alike(x: Tensor, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return like(x, dtype or x.dtype)


_RULES: dict[Any, Callable[..., Any]] = {
    **{getattr(_aten, name).default: _alike for name in _ONE_BY_ONE},
    **{
        getattr(getattr(_aten, name), kind): rule
        for name, rule in (("add", _joint), ("sub", _joint), ("rsub", _joint), ("mul", _joint), ("div", _quotient))
        for kind in ("Tensor", "Scalar")
    },
    **{
        getattr(getattr(_aten, name), kind): _comparison
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for kind in ("Tensor", "Scalar")
    },
    **{getattr(_aten, name).default: _joint for name in ("maximum", "minimum")},
    _aten.pow.Tensor_Scalar: _alike,
    _aten.isfinite.default: _mask,
    _aten.where.self: _chosen,
    _aten.index_select.default: _picked,
    _aten.index.Tensor: _indexed,
    _aten.nonzero.default: _places,
    _aten.sort.default: _sorted,
    _aten.sort.stable: _sorted,
    _aten.sum.default: _summed,
    _aten.sum.dim_IntList: _summed,
    _aten.amax.default: lambda x, dims=(), keepdim=False: _mean(x, list(dims), keepdim),
    _aten.mm.default: partial(_product, None),
    _aten.bmm.default: lambda left, right: left.new_empty(*left.shape[:2], right.shape[2]),
    _aten.addmm.default: _product,
    **{getattr(_aten, name).default: _typed_alike for name in ("empty_like", "zeros_like", "ones_like", "full_like")},
    _aten.mean.default: _number,
    _aten.mean.dim: _mean,
    _aten._log_softmax.default: _log_softmax,
    _aten._log_softmax_backward_data.default: _log_softmax_backward,
    _aten.binary_cross_entropy_with_logits.default: _cross_entropy,
    _aten.nll_loss_forward.default: _nll_loss,
    _aten.nll_loss_backward.default: _second_alike,
    _aten.threshold_backward.default: _alike,
    # For the shapes of these torch imports a solver of equations, which takes a second.
    _aten.arange.default: lambda end, **kind: _range(0, end, **kind),
    _aten.arange.start: lambda start, end, **kind: _range(start, end, **kind),
    _aten.arange.start_step: _range,
    _aten.sigmoid_backward.default: _alike,
    _aten.tanh_backward.default: _alike,
    _aten.gelu_backward.default: _second_alike,
    _aten.linalg_vector_norm.default: lambda x, _=2, dims=None, keepdim=False, **kind: _mean(x, dims, keepdim, **kind),
    _aten._foreach_sqrt.default: lambda several: [like(x) for x in several],
    _aten.slice_backward.default: _of_sizes,
    _aten.select_backward.default: _of_sizes,
    _aten.index_put.default: _alike,
    _aten.slice_scatter.default: _alike,
    _aten.select_scatter.default: _alike,
    _aten.cat.default: _joined,
    _aten.stack.default: _stacked,
    _aten.cumsum.default: _typed_alike,
    _aten.native_batch_norm.default: _batch_norm,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
}
