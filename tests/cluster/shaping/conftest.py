"""Two hosts in a box, for tests that need an interface of their own."""

import importlib
from pathlib import Path

import pytest

from penstock.errors import PenstockError


@pytest.fixture
def pair(monkeypatch):
    """Two hosts with a link of 100 Mbit/s each; without root there are none."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    boxed = importlib.import_module("hosts")
    try:
        boxed.check_allowed()
    except PenstockError as error:
        pytest.skip(str(error))
    with boxed.hosts([100, 100]) as made:
        yield made
