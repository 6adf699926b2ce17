"""Triton's interpreter as tests use it: one launch at a time, with less to do at each."""

import dataclasses
import functools
import inspect
import math
import threading
from types import FunctionType, SimpleNamespace

import torch


def one_launch_at_a_time(monkeypatch):
    """Launches wait for each other while a test runs: it is not made for several threads, as pipelines have."""
    from triton.runtime import interpreter

    lock, launch = threading.RLock(), interpreter.GridExecutor.__call__

    def locked(self, *given, **more):
        with lock:
            return launch(self, *given, **more)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", locked)


def device_with_free_memory(monkeypatch, free_bytes, traced=False):
    """The host stands in for a device while a test runs; `free_bytes` says how much of its memory is free.

    Two batches are drawn ahead to find the rows that are read most: they take seconds each, and two tell them too.
    Unless `traced`, steps are taken to need no memory: a trace would take longer than the steps of most tests.
    """
    if not traced:
        from penstock.trace.allocators import DevicePeak

        monkeypatch.setattr(
            "penstock.train.device.traced.TracedMemory.traced", lambda self, decision: DevicePeak(0, 0, "", {})
        )
    for name, value in {
        "mem_get_info": lambda *_: (free_bytes(), free_bytes()),
        "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 1 << 20,
        "reset_peak_memory_stats": lambda *_: None,
        "synchronize": lambda *_: None,
        "manual_seed": lambda *_: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr("penstock.train.device.placed_graph._COUNTED", 2)
    one_launch_at_a_time(monkeypatch)


def overflow_unchecked(monkeypatch):
    """Sums of integers are computed once while a test runs, as on a GPU: checking each costs twice as much again."""
    from triton.runtime import interpreter

    options = dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    monkeypatch.setattr(interpreter.interpreter_builder, "options", options)


def launch_faster() -> None:
    """Let the interpreter do less at each launch; what kernels compute stays what it is."""
    from recorded_kernels import Recordings

    recordings = Recordings()
    _replace_language_once(recordings)
    _record_functions(recordings)
    _remember_arguments()
    _launch_where_they_are()
    _remember_types()
    _broadcast_less()


def _remember_types() -> None:
    """Make what describes a type once for each type, or when it is asked for, not for each value of each launch."""
    from triton import language
    from triton.runtime import interpreter

    core, made, to_numpy = language.core, language.core.block_type.__init__, interpreter._get_np_dtype
    blocks, tensors, of_numpy = {}, {}, {}

    def init_block(self, element_ty, shape):
        key = element_ty.name, tuple(int(size) for size in shape)
        if key not in blocks:
            made(self, element_ty, shape)
            blocks[key] = dict(vars(self))
        vars(self).update(blocks[key], element_ty=element_ty)

    def numpy_type(kind):
        element = kind.element_ty if isinstance(kind, core.block_type) else kind
        if element.name not in of_numpy:
            of_numpy[element.name] = to_numpy(element)
        return of_numpy[element.name]

    def init_tuple(self, args, type=None):
        self.values, self._type = list(args), type

    def type_of_tuple(self):
        if not isinstance(self._type, core.tuple_type):
            given = self._type
            self._type = core._type_for_tuple_values(self.values) if given is None else core.tuple_type(given)
        return self._type

    def init_tensor(self, handle, type):
        sizes = tuple(type.shape.values) if type.is_block() else ()
        if sizes not in tensors:
            tensors[sizes] = core.constexpr(math.prod(sizes)), core.tuple([core.constexpr(size) for size in sizes])
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = tensors[sizes]

    core.block_type.__init__ = init_block
    core.tensor.__init__ = init_tensor
    core.tuple.__init__ = init_tuple
    core.tuple.type = property(type_of_tuple, lambda self, given: setattr(self, "_type", given))
    interpreter._get_np_dtype = numpy_type


def _replace_language_once(recordings) -> None:
    """Replace the language's functions by the interpreter's at the first launch, and leave them so.

    The interpreter replaces them at each launch and whenever a kernel calls another, and puts them back after a launch.
    A fifth of its time went there. Without a GPU nothing else calls them.
    """
    from triton import language
    from triton.runtime import interpreter

    patch, untouched = interpreter._patch_lang, interpreter._LangPatchScope()
    semantic, done = interpreter.interpreter_semantic, []

    def patch_attr(owner, name, member, builder, scope):
        def interpreted(*args, **options):
            return member(*args, **options, _semantic=semantic)

        remembered = recordings.remembered(interpreted)

        def called(*args, _semantic=None, **options):
            return (remembered if _semantic is None else interpreted)(*args, **options)

        scope.set_attr(owner, name, called)

    def patch_lang(kernel):
        if not done:
            code = inspect.unwrap(kernel).__code__
            done.append(patch(FunctionType(code, {"language": language, "core": language.core})))
            _follow_values(recordings)
        return untouched

    interpreter._patch_attr, interpreter._patch_lang = patch_attr, patch_lang


def _follow_values(recordings) -> None:
    """Recording ends where a kernel asks for a value; reductions and scans are recorded as one operation.

    Loads and stores ask whether there is a mask, not for its value.
    """
    from triton import language
    from triton.language import core
    from triton.runtime import interpreter

    inside: list[str] = []

    def asked(convert):
        def ask(tensor):
            if inside:
                return True
            recordings.stop()
            return convert(tensor)

        return ask

    def without_asking(name):
        method = getattr(interpreter.interpreter_semantic, name)

        def called(*given):
            inside.append(name)
            try:
                return method(*given)
            finally:
                inside.pop()

        setattr(interpreter.interpreter_semantic, name, called)

    for name in ("__index__", "__bool__", "__repr__", "__str__"):
        setattr(core.tensor, name, asked(getattr(core.tensor, name)))
    without_asking("_load_legacy")
    without_asking("_store_legacy")
    reduce, scan = core.reduce, core.associative_scan
    for owner in (language, core):
        owner.reduce = lambda x, axis, combine_fn, keep_dims=False, **_: recordings.folded(
            reduce, x, axis, combine_fn, keep_dims
        )
        owner.associative_scan = lambda x, axis, combine_fn, reverse=False, **_: recordings.folded(
            scan, x, axis, combine_fn, reverse
        )


def _record_functions(recordings) -> None:
    """Record kernels and the functions they call, and leave values as they are that are assigned."""
    from triton.language import core
    from triton.runtime import interpreter

    rewrite, remembered = interpreter.InterpretedFunction.rewrite, {}
    to_tensor = interpreter.interpreter_semantic.to_tensor

    def rewritten(self):
        function = rewrite(self)
        if function not in remembered:
            remembered[function] = recordings.remembered(function)
        return remembered[function]

    def assigned(x, check_type=True):
        return x if type(x) is core.tensor else to_tensor(x, check_type)

    interpreter.InterpretedFunction.rewrite = rewritten
    interpreter.interpreter_semantic.to_tensor = assigned


def _remember_arguments() -> None:
    """Look at what arguments a kernel takes once, not at every launch."""
    from triton.runtime import interpreter

    spec_of = functools.cache(lambda kernel: inspect.getfullargspec(inspect.unwrap(kernel)))

    def call_arguments(kernel, *given, **named):
        spec = spec_of(kernel)
        defaults = spec.defaults or ()
        usual = dict(zip(spec.args[len(spec.args) - len(defaults) :], defaults, strict=True))
        return usual | dict(zip(spec.args, given, strict=False)) | named

    known = {"getfullargspec": spec_of, "getcallargs": call_arguments}
    interpreter.inspect = SimpleNamespace(**{**vars(inspect), **known})


def _launch_where_they_are() -> None:
    """Let kernels work on the host's tensors themselves, and find out their types and constants once.

    The interpreter copies a GPU's tensors to the host and back; of the host's it would copy each onto itself.
    """
    from triton import language
    from triton.runtime import interpreter

    executor, constants, types = interpreter.GridExecutor, {}, functools.cache(language.str_to_ty)
    made, of_name = executor.__init__, language.str_to_ty

    def init_executor(self, fn, arg_names, grid, pre_run_hooks=()):
        if fn not in constants:
            made(self, fn, arg_names, grid, pre_run_hooks)
            constants[fn] = frozenset(self.constexprs)
        self.fn, self.arg_names, self.grid, self.pre_run_hooks = fn, arg_names, grid, pre_run_hooks
        self.constexprs = constants[fn]

    executor.__init__ = init_executor
    executor._init_args_hst = lambda self, given, named: (given, named)
    executor._restore_args_dev = lambda self, *_: None
    language.str_to_ty = lambda name, c: types(name, c) if type(name) is str and c is None else of_name(name, c)


def _broadcast_less() -> None:
    """Return two blocks of the same shape as they are, without comparing them size by size."""
    from triton.language.semantic import TritonSemantic

    usual = TritonSemantic.broadcast_impl_value

    def broadcast(self, one, other):
        if one.type.is_block() and other.type.is_block() and one.type.shape.values == other.type.shape.values:
            return one, other
        return usual(self, one, other)

    TritonSemantic.broadcast_impl_value = broadcast
