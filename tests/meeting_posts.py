"""Posts of one process that know each other."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.wire import Post, WireOptions, make_credentials


@contextmanager
def meeting_posts() -> Iterator[Callable[..., list[Post]]]:
    """Makes posts by name, closed at the end."""
    with ExitStack() as stack:

        def make(*names: str, **options: Any) -> list[Post]:
            chosen = WireOptions(**{"call_timeout": 20.0, "security": "token", **options})
            credentials = make_credentials(names)
            made = [stack.enter_context(Post(credentials[name], options=chosen)) for name in names]
            for one in made:
                for other in made:
                    one.meet(other.name, other.address)
            return made

        yield make
