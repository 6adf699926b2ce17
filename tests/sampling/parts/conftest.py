"""Tasks of one run in one process, closed when a test ends."""

from contextlib import ExitStack

import pytest

from penstock.sampling.parts import OwnedPart, serve_lists
from penstock.wire.keys import make_credentials
from penstock.wire.options import WireOptions
from penstock.wire.post import Post


@pytest.fixture
def posts():
    """Makes posts by name, which know each other."""
    with ExitStack() as stack:

        def make(*names):
            credentials = make_credentials(names)
            options = WireOptions(call_timeout=20.0, security="token")
            made = [stack.enter_context(Post(credentials[name], options=options)) for name in names]
            for one in made:
                for other in made:
                    one.meet(other.name, other.address)
            return made

        yield make


@pytest.fixture
def owners(posts):
    """`owners(partition)`: a worker's post, and the channels to two tasks that hold the parts in turn."""

    def make(partition, *more):
        worker, *rest = posts("worker", "store-0", "store-1", *more)
        for number, post in enumerate(rest[:2]):
            serve_lists(post, {p: OwnedPart.of(partition, p) for p in range(number, partition.parts, 2)})
        return worker, lambda part: worker.channel(f"store-{part % 2}", "draws"), *rest[2:]

    return make
