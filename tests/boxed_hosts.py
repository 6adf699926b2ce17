"""Hosts in a box (benchmarks/hosts.py), for tests that need a network of their own; skipped without root."""

import sys
from pathlib import Path

import pytest

from penstock.errors import PenstockError

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import hosts as boxed


def hosts_or_skip(rates_mbit):
    """Hosts with links of these rates, as a context."""
    try:
        boxed.check_allowed()
    except PenstockError as error:
        pytest.skip(str(error))
    return boxed.hosts(rates_mbit)
