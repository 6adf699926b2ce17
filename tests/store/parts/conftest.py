"""A cut graph, and its stores behind posts of one process."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from meeting_posts import meeting_posts
from penstock import Graph, NodeSet
from penstock.partition import Cut, cut
from penstock.partition.folder import Partition
from penstock.wire.endpoint import Endpoint

COUNT = 600


@pytest.fixture(scope="session")
def whole() -> Graph:
    """Vertices of two types with fields of every kind of row."""
    rng = np.random.default_rng(0)
    fields = {
        "x": rng.normal(size=(COUNT, 7)).astype(np.float32),
        "wide": rng.normal(size=(COUNT, 2, 3)),
        "half": rng.normal(size=(COUNT, 3)).astype(np.float16),
        "y": rng.integers(-1, 9, COUNT),
        "flag": rng.random(COUNT) < 0.5,
    }
    return Graph({"paper": NodeSet(COUNT, fields), "author/x": NodeSet(40, {"x": rng.random((40, 2))})}, {}, "cut")


@pytest.fixture(scope="session")
def cuts(whole: Graph, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Partition]:
    """The graph in 1, 2 or 4 parts."""
    made: dict[int, Partition] = {}

    def parts(count: int) -> Partition:
        if count not in made:
            made[count] = cut(whole, Cut(count, 2, "random"), tmp_path_factory.mktemp("cut") / "parts")
        return made[count]

    return parts


@pytest.fixture
def posts() -> Iterator[Callable[..., list[Endpoint]]]:
    """Posts by name that know each other, closed when the test ends."""
    with meeting_posts() as make:
        yield make
