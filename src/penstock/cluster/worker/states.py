"""A worker's whole state, sent to another worker that lost its own."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cluster.member import Member
from penstock.train.state_file import pack_state, unpack_state
from penstock.wire import Message

_PIECE = 16 << 20


def serve_state(member: Member, kind: str, state: Callable[[], dict[str, Any]]) -> None:
    """Answer requests of a kind with what `state` gives at that moment."""

    def answer(message: Message, sender: str) -> Iterator[Message]:
        file = io.BytesIO()
        pack_state(file, state())
        whole = np.frombuffer(file.getbuffer(), np.uint8)
        for start in range(0, len(whole), _PIECE):
            yield Message("piece", arrays=(whole[start : start + _PIECE],))

    member.endpoint.serve(kind, answer)


def state_of(member: Member, rank: int, kind: str = "state") -> dict[str, Any]:
    """A state of another worker."""
    channel = member.endpoint.channel(f"worker-{rank}", "state")
    pending = channel.start(Message(kind), member.setup.cluster.failure.patience)
    pieces = [np.array(part.arrays[0]) for part in pending.parts()]
    file = io.BytesIO(np.concatenate(pieces).tobytes())
    return unpack_state(file, file.getbuffer().nbytes, f"The state of worker-{rank}")


def name_of(rank: int) -> Path:
    """How errors name a state that came from another worker."""
    return Path(f"worker-{rank}")
