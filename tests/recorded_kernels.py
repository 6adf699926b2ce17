"""Triton's interpreter without doing again what it has done: calls are recorded and replayed.

What an operation does with values depends on their types, shapes and constants alone, but finding it out takes the
interpreter most of its time. So the second call of a function with arguments of the same kinds is recorded: each step
of the interpreter with NumPy's arrays becomes a line of a Python function, and further calls run that function. What
asks for a value, as a loop does, is not recorded as a whole; the functions and operations in it are.
"""

import functools
import re
from collections.abc import Callable
from types import NoneType

import numpy as np

SELDOM = 2
"""Calls with arguments of the same kinds that are interpreted before one is recorded."""

_new = object.__new__


class Unknown(Exception):  # noqa: N818 (no error: whoever asks goes on otherwise)
    """What an argument or a result is, or where a value is from, is not known: the call is interpreted."""


class Recorder:
    """Stands for the interpreter's builder while a call is recorded: does what that does, and writes it down."""

    def __init__(self, builder, tensors) -> None:
        self._builder, self._kept, self.whole = builder, [], True
        self._names: dict[int, str] = {}
        self._values: dict[str, np.ndarray] = {}
        self._constants: set[str] = set()
        self._narrow: dict[str, str] = {}
        """A value that others are wider copies of, by their names."""
        self._lines: list[tuple[str, str, set[str], bool]] = []
        """The name and the code of a value, the names it is computed from, and whether computing it has an effect."""
        self._known: dict[str, object] = {"builder": builder, "np": np}
        self._known_names: dict[int, str] = {}
        self._arguments = [f"a{k}" for k in range(len(tensors))]
        for name, tensor in zip(self._arguments, tensors, strict=True):
            self._name(tensor.handle, name)

    def __getattr__(self, name: str):
        member = getattr(self._builder, name)
        if name in _BY_NAME:
            return functools.partial(_BY_NAME[name], self)
        if name.startswith("create_"):
            function = getattr(type(self._builder), name)
            if function.__name__ == "<lambda>":
                return functools.partial(function, self)
            return functools.partial(self._any, name)
        return functools.partial(self._constant, member) if name.startswith("get_") else member

    # Names of values

    def _name(self, handle, name: str) -> str:
        self._kept.append(handle)
        self._names[id(handle)] = name
        self._values[name] = handle.data
        return name

    def _of(self, handle) -> str:
        name = self._names.get(id(handle))
        if name is None:
            self.whole = False
            name = self._name(handle, f"x{len(self._names)}")
        return name

    def _keep(self, thing) -> str:
        """A name in the function that is written for something that stays what it is."""
        name = self._known_names.get(id(thing))
        if name is None:
            name = self._known_names[id(thing)] = f"k{len(self._known)}"
            self._known[name] = thing
        return name

    def _constant(self, member, *given):
        result = member(*given)
        if type(result) is _interpreter().TensorHandle:
            self._write_constant(result)
        return result

    def _write_constant(self, handle) -> str:
        name = self._name(handle, f"c{len(self._names)}")
        self._known[name] = handle.data
        self._constants.add(name)
        return name

    def _write(self, result, code: str, used, pure: bool = True, effect: bool = False) -> str:
        """One line; nothing where the result is always the same."""
        if pure and self._constants.issuperset(used):
            return self._write_constant(result)
        name = self._name(result, f"r{len(self._names)}")
        self._lines.append((name, code, set(used), effect))
        return name

    def _effect(self, code: str, used) -> None:
        self._lines.append(("_", code, set(used), True))

    def _thin(self, names, shape) -> list[str]:
        """The same operands, not made wide where NumPy makes them so by itself."""
        thin = [self._narrow.get(name, name) for name in names]
        for k, name in enumerate(names):
            if np.broadcast_shapes(*(self._values[each].shape for each in thin)) == shape:
                break
            thin[k] = name
        return thin

    # Operations

    def _elementwise(self, result, operands, operation) -> None:
        names = [self._of(each) for each in operands]
        thin = self._thin(names, result.data.shape)
        raw = operation(*(self._values[name][(slice(0, 0),) * self._values[name].ndim] for name in thin))
        code = f"{self._keep(operation)}({', '.join(thin)})"
        if raw.dtype != result.data.dtype:
            code += f".astype({self._keep(result.data.dtype)})"
        self._write(result, code, thin)

    def _binary(self, lhs, rhs, operation):
        result = self._builder.binary_op(lhs, rhs, operation)
        self._elementwise(result, (lhs, rhs), operation)
        return result

    def _ternary(self, lhs, rhs, other, operation):
        result = self._builder.ternary_op(lhs, rhs, other, operation)
        self._elementwise(result, (lhs, rhs, other), operation)
        return result

    def _unary(self, operand, operation):
        result = self._builder.unary_op(operand, operation)
        self._elementwise(result, (operand,), operation)
        return result

    def _cast(self, operand, kind):
        result = self._builder.cast_impl(operand, kind)
        bits = {operand.dtype.scalar.name, kind.scalar.name}
        if bits == {"bf16", "fp32"}:
            return self._written("cast_impl", result, (operand, kind))
        name = self._of(operand)
        self._write(result, f"{name}.astype({self._keep(result.data.dtype)}, copy=False)", [name])
        return result

    def _splat(self, kind, operand):
        result = self._builder.create_splat(kind, operand)
        name, shape = self._of(operand), result.data.shape
        code = f"np.full({shape}, {name}, {self._keep(result.data.dtype)})"
        return self._widened(result, code, name)

    def _broadcast(self, operand, shape):
        result = self._builder.create_broadcast(operand, shape)
        name = self._of(operand)
        return self._widened(result, f"np.broadcast_to({name}, {result.data.shape})", name)

    def _widened(self, result, code, name):
        wide = self._write(result, code, [name])
        if self._values[name].dtype == result.data.dtype:
            self._narrow[wide] = self._narrow.get(name, name)
        return result

    def _expand(self, operand, axis):
        result = self._builder.create_expand_dims(operand, axis)
        return self._reshaped(result, operand)

    def _reshape(self, operand, shape, allow_reorder):
        return self._reshaped(self._builder.create_reshape(operand, shape, allow_reorder), operand)

    def _reshaped(self, result, operand):
        name = self._of(operand)
        self._write(result, f"{name}.reshape({result.data.shape})", [name])
        return result

    def _moved(self, pointer, offset):
        result = self._builder.create_addptr(pointer, offset)
        size = max(1, pointer.get_element_ty().primitive_bitwidth // 8)
        base, steps = self._thin([self._of(pointer), self._of(offset)], result.data.shape)
        code = f"{steps}.astype({self._keep(np.dtype(np.uint64))}, copy=False)"
        self._write(result, f"{base} + {code if size == 1 else f'{size} * {code}'}", [base, steps])
        return result

    def _program(self, axis):
        result = self._builder.create_get_program_id(axis)
        self._write(result, f"np.array([builder.grid_idx[{axis}]], np.int32)", [], pure=False)
        return result

    def _range(self, kind, start, stop):
        result = self._builder.create_make_range(kind, start, stop)
        self._write_constant(result)
        return result

    def _read_all(self, pointers, *how):
        everywhere = _interpreter().TensorHandle(np.ones(pointers.data.shape, bool), _interpreter().tl.int1)
        self._write_constant(everywhere)
        return self._read(pointers, everywhere, None, *how)

    def _read(self, pointers, mask, other, *how):
        result = self._builder.create_masked_load(pointers, mask, other, *how)
        if other is None:
            other = _interpreter().TensorHandle(np.zeros(pointers.data.shape, result.data.dtype), result.dtype)
            self._write_constant(other)
        names = [self._of(each) for each in (pointers, mask, other)]
        load = self._keep(_interpreter()._interpreter.load)
        self._write(result, f"{load}({', '.join(names)}, {self._keep(result.data.dtype)})", names, pure=False)
        return result

    def _store_all(self, pointers, value, *_):
        everywhere = _interpreter().TensorHandle(np.ones(pointers.data.shape, bool), _interpreter().tl.int1)
        self._write_constant(everywhere)
        self._store(pointers, value, everywhere)

    def _store(self, pointers, value, mask, *_):
        names = [self._of(each) for each in (pointers, value, mask)]
        self._builder.create_masked_store(pointers, value, mask, None, None)
        self._effect(f"{self._keep(_interpreter()._interpreter.store)}({', '.join(names)})", names)

    def _assert(self, condition, message):
        self._builder.create_assert(condition, message)
        name = self._of(condition)
        if name not in self._constants:
            self._effect(f"builder.create_assert({name}.all(), {str(message)!r})", [name])

    def _high(self, lhs, rhs):
        if lhs.data.dtype != np.uint64:
            return self._any("create_umulhi", lhs, rhs)
        result = self._builder.create_umulhi(lhs, rhs)
        names = self._of(lhs), self._of(rhs)
        self._write(result, f"{self._keep(high_bits)}({', '.join(names)})", names)
        return result

    def _any(self, method: str, *given):
        """Anything else is asked of the builder again."""
        return self._written(method, getattr(self._builder, method)(*given), given)

    def _written(self, method, result, given):
        handle = _interpreter().TensorHandle
        words, used = [], []
        for each in given:
            if type(each) is handle:
                used.append(self._of(each))
                words.append(f"{self._keep(handle)}({used[-1]}, {self._keep(each.dtype)})")
            else:
                words.append(self._keep(each))
        code = f"builder.{method}({', '.join(words)})"
        if type(result) is handle:
            atomic = "atomic" in method
            self._write(result, f"{code}.data", used, pure=bool(used) and not atomic, effect=atomic)
        elif result is None:
            self._effect(code, used)
        else:
            self.whole = False
        return result

    def folded(self, reduced, tensor, result, axis, more) -> None:
        """A reduction or a scan, whose steps are not recorded; `more` are its further arguments."""
        if type(result) is not type(tensor) or type(tensor) is not _interpreter().tl.core.tensor:
            self.whole = False
            return
        axis, *how = (getattr(each, "value", each) for each in (axis, *more[1:]))
        name, data, combine = self._of(tensor.handle), result.handle.data, more[0]
        operation = _folding(reduced, combine, tensor.handle.data.dtype)
        if operation is None or (not reduced and any(how)):
            self.whole = False
            return
        keep = f", keepdims={bool(how and how[0])}" if reduced else ""
        code = f"{self._keep(operation)}({name}, axis={axis}{keep})"
        kind = self._keep(data.dtype)
        code = f"{code}.astype({kind}, copy=False)" if result.type.is_block() else f"np.array([{code}], {kind})"
        self._write(result.handle, code, [name])

    # The function

    def function(self, result) -> Callable | None:
        """What does the same with arguments of the same kinds, given the arrays of their tensors."""
        needed: set[str] = set()
        given = self._part(result, needed)
        if not self.whole:
            return None
        kept = []
        for name, code, used, effect in reversed(self._lines):
            if effect or name in needed:
                needed |= used
                kept.append(f"{name} = {code}")
        lines = "\n    ".join([*reversed(kept), f"return {given}"])
        names = needed.union(*(re.findall(r"\w+", line) for line in (*kept, given)))
        space = {name: thing for name, thing in self._known.items() if name in names}
        exec(f"def replayed({', '.join(self._arguments)}):\n    {lines}", space)
        return space["replayed"]

    def _part(self, result, needed) -> str:
        core = _interpreter().tl.core
        if type(result) is core.tensor and result.handle is None:
            return self._keep(result)  # what storing gives
        if type(result) is core.tensor:
            name = self._of(result.handle)
            needed.add(name)
            fields = {"sign": sign(result), **vars(result)}
            del fields["handle"]
            return f"{self._keep(_made)}({name}, {self._keep(result.handle.dtype)}, {self._keep(fields)})"
        if type(result) in (tuple, list):
            parts = ", ".join(self._part(each, needed) for each in result)
            return f"({parts},)" if type(result) is tuple else f"[{parts}]"
        if type(result) not in (NoneType, int, float, bool, str, core.constexpr, core.dtype):
            self.whole = False
        return self._keep(result)


def _folding(reduced: bool, combine, kind):
    """NumPy's function for what the interpreter reduces or scans with it."""
    standard = _interpreter().tl.standard
    if combine is standard._sum_combine:
        return np.add.reduce if reduced else np.cumsum
    if combine is standard._elementwise_max and reduced:
        return np.nanmax if kind.kind == "f" else np.fmax.reduce
    if combine is standard._elementwise_min and reduced:
        return np.nanmin if kind.kind == "f" else np.fmin.reduce
    return None


_BY_NAME = {
    "binary_op": Recorder._binary,
    "ternary_op": Recorder._ternary,
    "unary_op": Recorder._unary,
    "cast_impl": Recorder._cast,
    "create_splat": Recorder._splat,
    "create_broadcast": Recorder._broadcast,
    "create_expand_dims": Recorder._expand,
    "create_reshape": Recorder._reshape,
    "create_addptr": Recorder._moved,
    "create_get_program_id": Recorder._program,
    "create_make_range": Recorder._range,
    "create_load": Recorder._read_all,
    "create_masked_load": Recorder._read,
    "create_store": Recorder._store_all,
    "create_masked_store": Recorder._store,
    "create_assert": Recorder._assert,
    "create_umulhi": Recorder._high,
}


@functools.cache
def _interpreter():
    from triton.runtime import interpreter

    return interpreter


def _made(data, dtype, fields):
    """A tensor of known kind with these values."""
    interpreter = _interpreter()
    handle, result = _new(interpreter.TensorHandle), _new(interpreter.tl.core.tensor)
    handle.__dict__ = {"data": data, "dtype": dtype, "attr": {}}
    result.__dict__ = {**fields, "handle": handle}
    return result


def high_bits(a, b):
    """The upper 64 bits of products of unsigned numbers of 64 bits."""
    half, low = np.uint64(32), np.uint64((1 << 32) - 1)
    middle = (a >> half) * (b & low) + ((a & low) * (b & low) >> half)
    other = (a & low) * (b >> half) + (middle & low)
    return (a >> half) * (b >> half) + (middle >> half) + (other >> half)


_signs: dict[tuple, int] = {}


def sign(tensor) -> int:
    """A number that stands for all that operations on a tensor depend on but its values."""
    known = vars(tensor).get("sign")
    if known is None:
        handle = tensor.handle
        if type(handle) is not _interpreter().TensorHandle:
            raise Unknown
        data = handle.data
        key = tensor.type.name, handle.dtype.name, data.dtype.char, data.shape
        known = tensor.sign = _signs.setdefault(key, len(_signs))
    return known


class Recordings:
    """Calls that were recorded, and what counts calls until they are."""

    def __init__(self) -> None:
        interpreter = _interpreter()
        core = interpreter.tl.core
        self._semantic = interpreter.interpreter_semantic
        self._builder = interpreter.interpreter_builder
        self._known: dict[tuple, Callable | int | None] = {}
        self._kept: list[object] = []
        self._tensor, self._constexpr, self._tuple = core.tensor, core.constexpr, core.tuple
        self._kinds = core.dtype, core.pointer_type, core.block_type
        self._same = interpreter.InterpretedFunction
        self.recorder: Recorder | None = None

    def remembered(self, function: Callable) -> Callable:
        """The same function, whose calls are recorded and replayed."""
        number, builder, tensor = len(self._kept), self._builder, self._tensor
        self._kept.append(function)

        @functools.wraps(function)
        def called(*given, **named):
            if self.recorder is not None:
                return function(*given, **named)
            tensors, key = [], [number, builder.options.sanitize_overflow]
            try:
                for each in given:
                    if type(each) is tensor:  # most are, and most calls have no more than these
                        tensors.append(each)
                        known = each.__dict__.get("sign")
                        key.append(sign(each) if known is None else known)
                    else:
                        key.append(self._key(each, tensors))
                for name, each in named.items():
                    key += name, self._key(each, tensors)
            except Unknown:
                return function(*given, **named)
            key = tuple(key)
            done = self._known.get(key, 0)
            if type(done) is not int:
                if done is None:
                    return function(*given, **named)
                return done(*[each.handle.data for each in tensors])
            if done < SELDOM:
                self._known[key] = done + 1
                return function(*given, **named)
            return self._record(key, tensors, function, given, named)

        return called

    def _record(self, key, tensors, function, given, named):
        if len({id(tensor.handle) for tensor in tensors}) < len(tensors):
            # One value for two arguments; another call may have two.
            return function(*given, **named)
        self._known[key] = None
        recorder = self.recorder = self._semantic.builder = Recorder(self._builder, tensors)
        try:
            result = function(*given, **named)
            if self.recorder is recorder:
                self.stop()
                self._known[key] = recorder.function(result)
        finally:
            self.stop()
        return result

    def folded(self, fold: Callable, tensor, axis, *more):
        """A reduction or a scan by the interpreter, whose own steps are not recorded."""
        recorder = self.recorder
        self.stop()
        result = fold(tensor, axis, *more)
        if recorder is not None:
            recorder.folded("reduce" in fold.__name__, tensor, result, axis, more)
            self.recorder = self._semantic.builder = recorder
        return result

    def stop(self) -> None:
        """Nothing is recorded any more; what was begun is given up."""
        self.recorder, self._semantic.builder = None, self._builder

    def _key(self, given, tensors):
        kind = type(given)
        if kind is self._tensor:
            tensors.append(given)
            return vars(given).get("sign") or sign(given)
        if kind is int or kind is bool or kind is str or kind is NoneType:
            return kind, given
        if kind is self._constexpr:
            return kind, self._key(given.value, tensors)
        if kind is float:
            return kind, given.hex()
        if kind in self._kinds:
            return kind, given.name
        if kind is tuple or kind is list:
            return kind, *(self._key(each, tensors) for each in given)
        if kind is self._tuple:
            before = len(tensors)
            key = kind, *(self._key(each, tensors) for each in given.values)
            if len(tensors) > before:
                raise Unknown
            return key
        if kind is slice:
            return kind, *(self._key(each, tensors) for each in (given.start, given.stop, given.step))
        if kind is self._same:
            return kind, id(given.fn)
        raise Unknown
