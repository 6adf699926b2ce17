"""Tasks on hosts in a box as forks of one process that has imported everything.

Sixteen tasks that import PyTorch each keep two processors busy for half a minute before a run of a few seconds. A fork
enters its host's namespace first and is then the same program as one that was started anew.
"""

import sys
from pathlib import Path

from hosts import Host, HostLauncher
from penstock.cluster.launch.local import log_of
from penstock.cluster.layout import Setup

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))

from forks import ForkedTask, forking_process  # noqa: E402 (a module of the tests)

_ON_HOST = """
import sys
sys.path.insert(0, {here!r})
from hosts import enter_host
enter_host({namespace!r})
{program}
"""
TASK = "from penstock.cluster.tasks.__main__ import main; raise SystemExit(main())"
"""The program of every task."""


def start_forking() -> None:
    """Start the process that forks, before there are hosts: one that starts on a host ends with it."""
    forking_process()


class _TaskOnHost(ForkedTask):
    def __init__(self, setup: Setup, host: Host, program: str) -> None:
        script = _ON_HOST.format(here=str(HERE), namespace=host.namespace, program=program)
        super().__init__(setup, log_of(setup), words=["python", script])


class ForkingLauncher(HostLauncher):
    """Forks every task on the host that stands for its machine."""

    program = TASK

    def start(self, setup: Setup) -> _TaskOnHost:  # type: ignore[override]
        """Fork a task."""
        return _TaskOnHost(setup, self._machines[setup.task.machine], self.program)
