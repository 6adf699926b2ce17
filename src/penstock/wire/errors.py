"""How a call can fail."""

from penstock.errors import PenstockError


class PeerLost(PenstockError):  # noqa: N818
    """A peer gave no sign for as long as the call would wait."""


class RemoteError(PenstockError):
    """The peer's handler raised. `type` is the name of what it raised."""

    def __init__(self, sentence: str, type: str = "PenstockError") -> None:
        super().__init__(sentence)
        self.type = type
