"""Triton's interpreter as tests use it: one launch at a time, with less to do at each."""

import inspect
import threading


def one_launch_at_a_time(monkeypatch):
    """Launches wait for each other while a test runs: it is not made for several threads, as pipelines have."""
    from triton.runtime import interpreter

    lock, launch = threading.RLock(), interpreter.GridExecutor.__call__

    def locked(self, *given, **more):
        with lock:
            return launch(self, *given, **more)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", locked)


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
