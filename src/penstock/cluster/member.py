"""A task's connection to the run: its endpoint, the addresses of the others, and its heartbeat."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.cluster.layout import CONTROLLER, Setup
from penstock.errors import PenstockError
from penstock.memory import peak_mb
from penstock.wire.channel import PeerLost
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.transport.tls import Credentials

_BEAT, _AGAIN = 0.5, 0.01
"""Seconds between heartbeats, and before the controller is asked again, where tasks are few."""
_BEAT_SHARE, _AGAIN_SHARE = 2e-3, 4e-4
"""The same for each task of a large run, so that its controller hears no more requests a second than from some hundred
tasks."""
_LONGEST_BEAT = 0.1
"""The most of the controller's patience that passes between heartbeats."""
_LOOK = 0.02
"""Seconds between two checks whether other tasks have started."""


class Member:
    """Close it, or use it as a context manager: an error that its task raises on its first start is then reported and
    ends the run.
    """

    def __init__(self, setup: Setup, handler_threads: int = 2) -> None:
        self.setup = setup
        self.endpoint = Endpoint(
            Credentials.from_json(setup.credentials), setup.task.address, setup.cluster.wire, handler_threads
        )
        self.stopped = threading.Event()
        """Set when the controller says that the run is over, or has been silent too long."""
        self.asked = threading.Event()
        """Set when the run should stop at the next step."""
        self.round = 0
        """The newest round that the controller has declared over; see `cluster.rendezvous.Rounds`."""
        self.counts: Callable[[], dict[str, int]] = dict
        """The task's counters so far, sent with heartbeats."""
        self.spans: Callable[[], list[list[int]]] = list
        """The spans of this task's stages in some batches, sent when it leaves."""
        self.endpoint.serve("tell", self._hear)
        self.endpoint.serve("served", self._served)
        self.endpoint.meet(CONTROLLER, setup.controller)
        self._reachable: set[str] = set()
        self._meet(setup.addresses)
        self._control = self.endpoint.channel(CONTROLLER, "control")
        self._refused = False
        tasks, patience = len(setup.layout.tasks), setup.cluster.failure.patience
        self._again = max(_AGAIN, tasks * _AGAIN_SHARE)
        self._between_beats = max(_BEAT, min(tasks * _BEAT_SHARE, patience * _LONGEST_BEAT))
        self._beats = threading.Thread(target=self._beat, name="beats", daemon=True)

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # An error caused by another task's loss may not recur after a restart, and neither may one after a good start.
        first = self.setup.incarnation == 0
        if first and isinstance(error, PenstockError) and not raised_by(error, PeerLost.__name__):
            self.refuse(error)
        self.close()

    def refuse(self, error: PenstockError) -> None:
        """Have the controller end the run with an error that the user must correct; once, if the controller can be
        reached.
        """
        if not self._refused and not self.stopped.is_set():
            self._refused = True
            with suppress(PenstockError):
                self.ask("failed", message=str(error), code=error.code)

    def note(self, sentence: str) -> None:
        """Show a sentence to the user who started the run."""
        logging.warning("%s", sentence)
        with suppress(PenstockError):
            self.ask("progress", what="note", text=sentence)

    def drop_damaged(self, error: PenstockError, what: str) -> None:
        """A file of this task is damaged: continue without it if a checkpoint will replace it, else refuse.

        When a run begins or is resumed, the first worker sends out what the checkpoint holds. In the middle of a run no
        other task has what is in the file.
        """
        if self.setup.incarnation == 0:
            self.note(f"{error}: {what} are taken from the checkpoint instead.")
            return
        refusal = PenstockError(
            f"{error}, and {self.setup.task.id} cannot continue without it: `penstock train --resume {self.setup.run}`"
            " resumes from the newest checkpoint.",
            code=error.code,
        )
        self.refuse(refusal)
        raise refusal from error

    def announce(self, ready: bool = True) -> None:
        """Learn the addresses of the others; if `ready` for requests, publish the own address."""
        body = {"address": self.endpoint.address, "ready": ready, "incarnation": self.setup.incarnation}
        self._meet(self.ask("here", **body).body)
        if not self._beats.is_alive():
            self._beats.start()

    def await_tasks(self, *kinds: str) -> None:
        """Wait until all other tasks of some kinds have started: requests before that would count them as lost.

        The controller decides how long they may take.
        """
        needed = {task.id for task in self.setup.layout.tasks if task.kind in kinds} - {self.setup.task.id}
        while not needed <= self._reachable:
            if self.stopped.wait(_LOOK):
                raise PenstockError("The controller ended the run.", code="closed")

    def _meet(self, addresses: dict[str, Any]) -> None:
        for name, address in addresses.items():
            if name != self.setup.task.id:
                self.endpoint.meet(str(name), str(address))
                self._reachable.add(str(name))

    def ask(self, kind: str, **body: Any) -> Message:
        """Send a request to the controller and return its answer."""
        return self._control.call(Message(kind, body), self.setup.cluster.failure.patience)

    def ask_until_known(self, kind: str, **body: Any) -> Message:
        """The controller's answer to a request that others must make as well; it is asked again until it is known."""
        while (answer := self.ask(kind, **body)).kind == "wait":
            if self.stopped.wait(self._again):
                raise PenstockError("The controller ended the run.", code="closed")
        return answer

    def holds(self, generation: int) -> bool:
        """Whether the controller says that a round is still current."""
        return bool(self.ask("holds", generation=generation).body["holds"])

    def is_over(self, generation: int, asks: bool = True) -> bool:
        """Whether a round, or the run, is over: as the controller has told, or says now if it `asks`."""
        return self.round >= generation or self.stopped.is_set() or (asks and not self.holds(generation))

    def close(self) -> None:
        """Leave the run and close all connections."""
        self.stopped.set()
        if self._beats.is_alive():
            self._beats.join()
        self.endpoint.close()

    def _hear(self, message: Message, sender: str) -> Message:
        if sender != CONTROLLER:
            raise PenstockError(f"{sender} may not give orders: only the controller may.", code="not-permitted")
        self._meet(message.body.get("addresses", {}))
        self.round = max(self.round, int(message.body.get("over", 0)))
        if message.body.get("ask_to_stop"):
            self.asked.set()
        if message.body.get("stop"):
            self.stopped.set()
        return Message("heard")

    def _served(self, message: Message, sender: str) -> Message:
        return Message("served", {"seconds": sum(self.endpoint.served().values())})

    def _beat(self) -> None:
        while not self.stopped.wait(self._between_beats):
            try:
                self._give_sign()
            except PenstockError:
                # The controller is gone or cut off: the results of this task would be lost.
                self.stopped.set()

    def _give_sign(self, **more: Any) -> None:
        told = {"peak_mb": round(peak_mb(), 1), "incarnation": self.setup.incarnation, "counts": self.counts()}
        self.ask("beat", **told, coflows=self.endpoint.coflows(), **more)

    def leave(self) -> None:
        """Tell the controller that this task leaves, if it can be reached."""
        # Bytes sent and received by every flow that this task has begun: too many to send with each heartbeat.
        own = f"{self.setup.task.id}>"
        flows = {f.name: [f.sent_bytes, f.received_bytes] for f in self.endpoint.flows() if f.name.startswith(own)}
        with suppress(PenstockError):
            self._give_sign(flows=flows, spans=self.spans())


def raised_by(error: BaseException | None, *names: str) -> bool:
    """Whether an error, or its cause, is of one of these types, here or where it was raised."""
    while error is not None:
        if not {type(error).__name__, getattr(error, "type", "")}.isdisjoint(names):
            return True
        error = error.__cause__
    return False
