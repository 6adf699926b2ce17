"""Triton's interpreter as tests use it: one launch at a time, with less to do at each."""

import dataclasses
import inspect
import threading

import torch


def one_launch_at_a_time(monkeypatch):
    """Launches wait for each other while a test runs: it is not made for several threads, as pipelines have."""
    from triton.runtime import interpreter

    lock, launch = threading.RLock(), interpreter.GridExecutor.__call__

    def locked(self, *given, **more):
        with lock:
            return launch(self, *given, **more)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", locked)


def device_with_free_memory(monkeypatch, free_bytes):
    """The host stands in for a device while a test runs; `free_bytes` says how much of its memory is free.

    Two batches are drawn ahead to find the rows that are read most: they take seconds each, and two tell them too.
    """
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


def remember_types() -> None:
    """Make what describes a type once for each type, or when it is asked for, not for each value of each launch."""
    from triton import language
    from triton.runtime import interpreter

    core, made, to_numpy = language.core, language.core.block_type.__init__, interpreter._get_np_dtype
    blocks, of_numpy = {}, {}

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

    core.block_type.__init__ = init_block
    core.tuple.__init__ = init_tuple
    core.tuple.type = property(type_of_tuple, lambda self, given: setattr(self, "_type", given))
    interpreter._get_np_dtype = numpy_type


def remember_builtins() -> None:
    """Look for the functions that the interpreter replaces once, not at every launch, where a third of the time went.

    It replaces them in Triton's modules while a kernel runs, and puts them back afterwards. A kernel that another
    kernel calls finds them replaced, and leaves them so.
    """
    from triton import language
    from triton.runtime import interpreter

    core = language.core
    packages = (language, language.tensor, language.math, core, core.tensor_descriptor_base)
    known = {each: [found for found in inspect.getmembers(each) if core.is_builtin(found[1])] for each in packages}
    look = interpreter._patch_builtin

    def patch_builtin(package, builder, scope):
        if package not in known:
            look(package, builder, scope)
        for name, member in known.get(package, ()):
            if getattr(package, name) is member:
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin
