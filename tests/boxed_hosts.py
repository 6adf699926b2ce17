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


def resent_bytes(host):
    """At most how many bytes a host's TCP has sent again, because a limited link dropped them."""
    with host.entered():
        lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    names, counts = (line.split() for line in lines if line.startswith("Tcp:"))
    return 1514 * int(counts[names.index("RetransSegs")])
