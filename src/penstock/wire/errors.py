"""How a call can fail."""

from penstock.errors import Code, PenstockError


class PeerLost(PenstockError):  # noqa: N818
    """A peer gave no sign for as long as the call would wait."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="peer-lost")


class RemoteError(PenstockError):
    """The peer's handler raised. `type` is the name of what it raised."""

    def __init__(self, sentence: str, type: str = "PenstockError", code: Code = "unexpected-failure") -> None:
        super().__init__(sentence, code=code)
        self.type = type
