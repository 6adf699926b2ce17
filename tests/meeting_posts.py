"""Posts of one process that know each other."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.wire.endpoint import Endpoint
from penstock.wire.options import WireOptions
from penstock.wire.transport.tls import make_credentials


@contextmanager
def meeting_posts() -> Iterator[Callable[..., list[Endpoint]]]:
    """Makes posts by name, closed at the end."""
    with ExitStack() as stack:

        def make(*names: str, **options: Any) -> list[Endpoint]:
            chosen = WireOptions(**{"call_timeout": 20.0, "security": "token", **options})
            credentials = make_credentials(names)
            made = [stack.enter_context(Endpoint(credentials[name], options=chosen)) for name in names]
            for one in made:
                for other in made:
                    one.meet(other.name, other.address)
            return made

        yield make
