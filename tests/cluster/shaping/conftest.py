"""Two hosts in a box, for tests that need an interface of their own."""

import pytest

from boxed_hosts import hosts_or_skip


@pytest.fixture
def pair():
    """Two hosts with a link of 100 Mbit/s each."""
    with hosts_or_skip([100, 100]) as made:
        yield made
