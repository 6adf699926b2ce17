"""The connections of one channel between two tasks: the first, and others for large messages.

One connection is encrypted by one core at each end. Where processes have threads for it (`Lane`), a channel that sends
or receives large messages has as many more connections, and each message takes the one with the fewest bytes before it.
A connection that has carried much is replaced by one with fresh keys; what is under way on it still arrives.
"""

from penstock.wire.transport.connection import Connection
from penstock.wire.transport.stream import FINISHED

LARGE_BYTES = 1 << 19
"""Of a message that does not travel over the first connection where there are others."""
KEY_BYTES = 1 << 36
"""That are sent in one direction before a connection is replaced. AES-GCM's keys are good for 2^38 in TLS 1.3 (RFC
8446, 5.5), and Python's `ssl` has no way to change them on the way."""


class Group:
    """Belongs to the wire's thread."""

    def __init__(self, first: Connection) -> None:
        self._current = {first.stripe: first}
        self._finishing: set[Connection] = set()

    @property
    def first(self) -> Connection:
        """The connection that every message can take."""
        return self._current[0]

    def add(self, connection: Connection) -> None:
        """Use one more; one with the same number, in its place."""
        former = self._current.get(connection.stripe)
        self._current[connection.stripe] = connection
        if former is not None:
            self._finishing.add(former)
            former.finish()

    def ends_with(self, connection: Connection, reason: str) -> bool:
        """Forget a connection that has ended; whether the group has ended with it, since messages may be lost."""
        if connection in self._finishing and reason == FINISHED:
            self._finishing.discard(connection)
            return False
        return connection in self.connections()

    def choose(self, size: int) -> Connection:
        """The connection for a message of so many bytes."""
        others = [each for stripe, each in self._current.items() if stripe] if size >= LARGE_BYTES else []
        return min(others, key=lambda each: each.queued) if others else self.first

    def worn(self) -> list[Connection]:
        """Connections that should be replaced."""
        return [each for each in self._current.values() if each.bytes >= KEY_BYTES]

    def connections(self) -> list[Connection]:
        """All of them, those that are being replaced too."""
        return [*self._current.values(), *self._finishing]

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections():
            connection.close()
