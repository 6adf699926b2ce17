"""Triton's interpreter, which is not made for launches from several threads at once, as a pipeline's are."""

import threading


def one_launch_at_a_time(monkeypatch):
    """Launches wait for each other while a test runs."""
    from triton.runtime import interpreter

    lock, launch = threading.RLock(), interpreter.GridExecutor.__call__

    def locked(self, *given, **more):
        with lock:
            return launch(self, *given, **more)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", locked)
