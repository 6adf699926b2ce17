"""`penstock net`: what is printed, what is done, what is refused."""

import importlib.util
import sys
from pathlib import Path

import pytest

from penstock.cluster.shaping import look

sys.path.append(str(Path(__file__).parents[2] / "cli"))
from in_process import answer, command, refusal

CLUSTER = """
machines:
- {name: near, address: 10.77.0.1, nic_gbps: 0.1}
- {name: far, address: 10.77.0.2, nic_gbps: 0.05}
wire: {dscp: 10}
"""


@pytest.fixture
def file(tmp_path):
    """A cluster file for the two hosts."""
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path
