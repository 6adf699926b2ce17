"""What a message of rows takes of the processors at both its ends, measured between two endpoints of this process."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from penstock.wire import Endpoint, Message, make_credentials

_WIDTH = 64
_ROWS = (16, 512, 4096)
"""Rows of the messages that are measured: 4 KiB, 128 KiB and 1 MiB."""
_MESSAGES = 64
"""Messages of one measurement. They are sent one after the other, so that each wakes the threads of both ends, as the
messages between bins do."""
_SENDER, _READER = "sender", "reader"


def measure_messages(repeats: int) -> Iterator[tuple[int, float]]:
    """Bytes of a message, and the least mean seconds of a processor for each in so many measurements.

    Rows are gathered from a level, sent, and written into another level, as whole-graph training does.
    """
    keys = make_credentials([_SENDER, _READER])
    with Endpoint(keys[_SENDER]) as sender, Endpoint(keys[_READER]) as reader:
        sender.meet(_READER, reader.address)
        channel = sender.channel(_READER, "rows", 0)
        level, to = torch.zeros(2 * max(_ROWS), _WIDTH), torch.zeros(max(_ROWS), _WIDTH)

        def receive(message: Message, who: str) -> Message:
            rows = np.array(message.arrays[0])
            to[: len(rows)] = torch.from_numpy(rows)
            return Message("heard")

        reader.serve("rows", receive, at_once=True)
        for count in _ROWS:
            places = torch.arange(0, 2 * count, 2)

            def send(number: int, places: torch.Tensor = places) -> None:
                for _ in range(number):
                    channel.call(Message("rows", {}, (level.index_select(0, places).numpy(),)))

            send(1)
            yield 4 * _WIDTH * count, min(_seconds(lambda: send(_MESSAGES)) / _MESSAGES for _ in range(repeats))


def _seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
