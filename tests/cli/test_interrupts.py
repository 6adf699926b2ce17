"""Ctrl-C and SIGTERM are answered while kernels compute."""

import json
import signal
import textwrap
import time

import numpy as np
import pytest

from forks import ForkedProgram

LONG = pytest.mark.long
BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
PATIENCE_S = 120  # for a machine that has other work: what is tested ends within a second, or after many minutes

STARTS = """
import sys
from penstock.cli import main
import {module} as module
begin = module.{kernel}

def announced(*given):
    print("started", file=sys.stderr, flush=True)
    return begin(*given)

module.{kernel} = announced
sys.argv = ["penstock", *{arguments!r}]
main()
"""


def interrupted(script: str, number: int) -> tuple[int, str]:
    """The exit code and what was said by a script that gets a signal once it says that it has started."""
    process = ForkedProgram(["python", script])
    try:
        while "started\n" not in process.said()[1]:
            assert process.poll() is None, f"it ended before it started: {process.said()}"
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
        return process.returncode, said.partition("started\n")[2]
    finally:
        process.kill()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=LONG), signal.SIGTERM])
def test_a_simulation_is_left_between_two_moments(tmp_path, number):
    # Every pull differs from every other: hours of events.
    machines = "\n".join(f"- {{name: m{k}, nic_gbps: 10}}" for k in range(100))
    job = "{stores: 100, workers: 100, pull_bytes: 4e7, spread: {pull: 1.5}}"
    (tmp_path / "long.yaml").write_text(f"iterations: 500\nmachines:\n{machines}\ngnn: {job}\n")
    arguments = ["simulate", str(tmp_path / "long.yaml"), "--policy", "fair", "--json"]
    script = STARTS.format(module="penstock.simulate.engine", kernel="open_run", arguments=arguments)
    code, said = interrupted(script, number)
    assert code == 130
    assert json.loads(said.strip().splitlines()[-1])["error"].startswith("Interrupted: nothing was written")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=LONG)])
def test_a_trace_is_left(tmp_path, number):
    rng = np.random.default_rng(0)
    lines = ["150 500"]  # it takes minutes
    for name in range(500):
        senders, receivers = rng.choice(150, 60, replace=False), rng.choice(150, 60, replace=False)
        flows = [f"{port}:{rng.uniform(1, 1000):.3f}" for port in receivers]
        lines.append(f"{name} 0 {len(senders)} {' '.join(map(str, senders))} {len(flows)} {' '.join(flows)}")
    (tmp_path / "shuffles.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "trace.yaml").write_text("trace: {file: shuffles.txt}\n")
    arguments = ["simulate", str(tmp_path / "trace.yaml"), "--policy", "fair"]
    script = STARTS.format(module="penstock.simulate.traces.simulation", kernel="pairs_of", arguments=arguments)
    code, said = interrupted(script, number)
    assert code == 130
    assert said.strip().splitlines()[-1] == "Error: Interrupted: nothing was written."


@BOTH
def test_a_kernel_that_never_comes_back_is_ended(number):
    script = textwrap.dedent(
        """
        import sys, threading, time
        import numpy as np
        from numba import njit
        from penstock.cli import _give_up
        from penstock.cli import InterruptWatch

        @njit(nogil=True)
        def forever(values, turns):
            for k in range(turns):
                values[k % 8] += k * values[(k + 3) % 8]

        forever(np.zeros(8), 1)
        InterruptWatch(_give_up).start()
        values = np.ones(8)

        def tell():
            # The kernel runs once it has changed the values: a signal before would still be heard in Python.
            while (values == 1).all():
                time.sleep(0.01)
            print("started", file=sys.stderr, flush=True)

        threading.Thread(target=tell, daemon=True).start()
        forever(values, 1 << 62)
        """
    )
    code, said = interrupted(script, number)
    assert code == 130
    assert said.strip() == "Error: Interrupted in the middle of a computation."


def test_a_command_with_a_handler_of_its_own_is_left_alone():
    script = textwrap.dedent(
        """
        import signal, sys, time
        from penstock.cli import _give_up
        from penstock.cli import InterruptWatch

        InterruptWatch(_give_up).start()
        asked = []
        signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
        print("started", file=sys.stderr, flush=True)
        while not asked:
            time.sleep(0.01)
        time.sleep(1.5)
        print("finished its step", file=sys.stderr, flush=True)
        """
    )
    code, said = interrupted(script, signal.SIGINT)
    assert (code, said.strip()) == (0, "finished its step")
