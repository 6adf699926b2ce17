"""What a run changes in its process while it goes on, and gives back: threads, generator, memory, signals."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from penstock.graph.blocks import default_threads
from penstock.memory import freed_memory_kept
from penstock.train.job import Job
from penstock.train.processor import chosen_device


@contextmanager
def own_settings(job: Job) -> Iterator[None]:
    """The job's threads and a generator of its own, given back afterwards: a notebook goes on as it was."""
    before, rounded = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(job.threads or default_threads())
    torch.backends.cuda.matmul.allow_tf32 = job.compute_type == "tf32"
    try:
        gpus = [device] if (device := chosen_device(job.device)).type == "cuda" else []
        with torch.random.fork_rng(devices=gpus), freed_memory_kept():
            yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cuda.matmul.allow_tf32 = rounded


@contextmanager
def polite_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C (or polite kill) lets the step under way finish; a second one is heard at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def hear(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
