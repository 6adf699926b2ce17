"""Tasks of one run in one process, closed when a test ends."""

import pytest

from meeting_posts import meeting_posts
from penstock.sampling.parts import OwnedPart, serve_lists


@pytest.fixture
def posts():
    """Makes posts by name, which know each other."""
    with meeting_posts() as make:
        yield make


@pytest.fixture
def owners(posts):
    """`owners(partition)`: a worker's post, and the channels to two tasks that hold the parts in turn."""

    def make(partition, *more):
        worker, *rest = posts("worker", "store-0", "store-1", *more)
        for number, endpoint in enumerate(rest[:2]):
            serve_lists(endpoint, {p: OwnedPart.of(partition, p) for p in range(number, partition.parts, 2)})
        return worker, lambda part: worker.channel(f"store-{part % 2}", "draws"), *rest[2:]

    return make
