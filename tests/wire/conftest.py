"""Posts of one run, closed when a test ends."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from meetings import Meeting

from penstock.wire.endpoint import Endpoint
from penstock.wire.options import WireOptions
from penstock.wire.transport.tls import make_credentials


@pytest.fixture(params=["tls", "token"])
def security(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    """Posts by name that know each other's addresses."""
    with ExitStack() as stack:

        def make(*names: str, handler_threads: int = 2, **options: Any) -> list[Endpoint]:
            chosen = WireOptions(**{"call_timeout": 20.0, **options})
            credentials = make_credentials(names)
            posts = [
                stack.enter_context(Endpoint(credentials[name], options=chosen, handler_threads=handler_threads))
                for name in names
            ]
            for one in posts:
                for other in posts:
                    one.meet(other.name, other.address)
            return posts

        yield make
