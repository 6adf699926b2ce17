"""The wire's end of a channel: its socket, made anew when the peer has moved, and what ZeroMQ says about it."""

import zmq
from zmq.utils.monitor import recv_monitor_message

from penstock.wire.channel import Channel
from penstock.wire.keys import Credentials
from penstock.wire.message import Limits
from penstock.wire.options import WireOptions
from penstock.wire.sockets import FAILED, LOST, READY, Socket, calling_socket, monitor_of

_EVENTS = READY | LOST | FAILED


class Link:
    """Belongs to the thread that owns the sockets."""

    def __init__(
        self,
        channel: Channel,
        context: zmq.Context[Socket],
        credentials: Credentials,
        options: WireOptions,
        limits: Limits,
    ) -> None:
        self.channel = channel
        self.socket: Socket | None = None
        self.monitor: Socket | None = None
        self.connected = False
        """Whether there is a peer at the other end that has proven to be one."""
        self._context, self._credentials, self._options, self._limits = context, credentials, options, limits
        self._address = ""

    @property
    def address(self) -> str:
        """Where the peer was last said to be."""
        return self._address

    def connect(self, address: str, anew: bool = False) -> None:
        """To the peer, where it is now; what was asked where it was before is asked again. `anew`: also there."""
        if address != self._address or anew:
            self.close()
            channel = self.channel
            self.socket = calling_socket(
                self._context,
                self._credentials,
                channel.peer,
                address,
                self._options,
                self._limits,
                channel.flow.priority,
                _EVENTS,
            )
            self.monitor = monitor_of(self.socket, _EVENTS)
            self._address = address
            channel.state = f"there is no connection to {address}"
            channel.repeat()

    def hear(self) -> bool:
        """What happened to the connection; whether one was lost. What was asked over it may not have left."""
        lost = False
        while self.monitor is not None and self.monitor.poll(0):
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)["event"]
            if event == READY:
                self.channel.state = f"it is connected at {self._address} but gave no sign"
                self.connected = True
                continue
            lost, self.connected = lost or self.connected, False
            if event & FAILED:
                self.channel.state = f"{self._address} refuses this task, or is not {self.channel.peer}"
            elif not self.channel.state.startswith(f"{self._address} refuses"):
                self.channel.state = f"there is no connection to {self._address}"
        return lost

    def close(self) -> None:
        """Leave nothing."""
        if self.socket is not None and self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.socket.close()
        self.socket = self.monitor = None
        self.connected = False
        self._address = ""
