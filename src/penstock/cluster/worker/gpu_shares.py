"""Features in the memories of all GPUs of a host: how its workers agree on it and hand each other their shares."""

import threading
from collections.abc import Callable

from penstock.cluster.layout import worker_rank
from penstock.cluster.member import Member
from penstock.errors import PenstockError
from penstock.store.device.shards import TRIAL, GpuGroup, Peers
from penstock.store.parts.requests import RankRequest, ShareRequest, checked
from penstock.wire.channel import PeerLost, RemoteError
from penstock.wire.descriptors import DescriptorServer, Offer, fetch_descriptor
from penstock.wire.message import Message

_LOOK = 0.05
"""Seconds before something that is not there yet is asked for again."""
_FETCHES = 3
"""How often a share that is offered is fetched in vain before that is an error."""


class GpuShares:
    """The shares that this worker has mapped, its own and the others', which it hands to whoever asks.

    A worker that is lost and started again asks for its own share as well: the others have kept it.
    """

    def __init__(self, member: Member) -> None:
        self._member, self._rank = member, member.setup.task.rank
        self._world = member.setup.layout.world
        self._lock, self._server = threading.Lock(), DescriptorServer()
        self._offers: dict[tuple[str, int], tuple[Offer, int]] = {}
        member.endpoint.serve("share", self._share)
        member.endpoint.serve("shares-held", self._held)

    def group(self) -> GpuGroup:
        """The GPUs of all workers."""
        held = 0
        if self._member.setup.incarnation:
            asked = (self._ask(each, Message("shares-held", {"rank": self._rank})) for each in self._others())
            held = max((int(answer.body["bytes"]) for answer in asked if answer is not None), default=0)
        # Where all features fit all GPUs, there are no shares unless the job asks for them.
        return GpuGroup(self._world, self._rank, held, False, Peers(self._find, self._keep))

    def agree(self, matter: str, find: Callable[[], str]) -> list[str]:
        """What all workers have found about a matter, by rank. Waits for all of them."""
        answer = self._member.ask("agree", matter=matter)
        if answer.kind == "wait":
            answer = self._member.ask_until_known("agree", matter=matter, finding=find())
        return [str(each) for each in answer.body["findings"]]

    def _others(self) -> list[int]:
        return [rank for rank in range(self._world) if rank != self._rank]

    def _pause(self) -> None:
        if self._member.stopped.wait(_LOOK):
            raise PenstockError("The controller ended the run.", code="closed")

    def _keep(self, name: str, rank: int, descriptor: int, size: int) -> None:
        with self._lock:
            self._offers[name, rank] = self._server.offer(descriptor), size

    def _find(self, name: str, rank: int) -> int | None:
        own = rank == self._rank
        # Its owner has a share as soon as its rows are there; if the owner was lost since, others may have it.
        asked = sorted(self._others(), key=lambda each: each != rank)
        if own and not self._member.setup.incarnation:
            return None
        failed = 0
        while True:
            for each in asked:
                answer = self._ask(each, Message("share", {"name": name, "rank": rank}))
                if answer is None or answer.kind != "offer":
                    continue
                try:
                    return fetch_descriptor(Offer(str(answer.body["address"]), str(answer.body["token"])))
                except PenstockError:
                    # A worker may be lost after its answer; one that lives hands out what it offers.
                    failed += 1
                    if failed == _FETCHES:
                        raise
            if own and not failed:
                return None
            self._pause()

    def _ask(self, rank: int, message: Message) -> Message | None:
        """Another worker's answer; None if it is lost, or was lost and has not come so far again."""
        channel = self._member.endpoint.channel(f"worker-{rank}", "shares", 2)
        try:
            return channel.call(message, self._member.setup.cluster.failure.patience)
        except PeerLost:
            return None
        except RemoteError as error:
            if error.code != "unknown-name":
                raise
            return None

    def _share(self, message: Message, sender: str) -> Message:
        worker_rank(sender, self._world, "ask for shares of features")
        wanted = checked(message, ShareRequest)
        with self._lock:
            found = self._offers.get((wanted.name, wanted.rank))
        return Message("none") if found is None else Message("offer", found[0]._asdict())

    def _held(self, message: Message, sender: str) -> Message:
        worker_rank(sender, self._world, "ask for shares of features")
        wanted = checked(message, RankRequest).rank
        with self._lock:
            of_rank = [size for (name, rank), (_, size) in self._offers.items() if rank == wanted and name != TRIAL]
        return Message("held", {"bytes": sum(of_rank)})
