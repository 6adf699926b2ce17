"""Work on several threads: results in order, and an end to it."""

import threading

import pytest

from penstock.plan.comparison import in_threads


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_order(threads: int) -> None:
    assert in_threads([lambda number=number: number**2 for number in range(20)], threads) == [n**2 for n in range(20)]


def test_several_work_at_once() -> None:
    met = threading.Barrier(2)
    assert sorted(in_threads([lambda: met.wait(60), lambda: met.wait(60)], 2)) == [0, 1]


def test_the_first_failure_stops_the_others() -> None:
    ended, started = threading.Event(), threading.Event()

    def endless() -> None:
        started.set()
        try:
            while True:
                pass
        finally:
            ended.set()

    def failing() -> None:
        assert started.wait(60)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        in_threads([endless, failing], 2)
    assert ended.wait(60)


def test_an_interrupt_stops_all(monkeypatch) -> None:
    """Ctrl-C arrives in the thread that waits."""
    ended, started = threading.Event(), threading.Event()

    def endless() -> None:
        started.set()
        try:
            while True:
                pass
        finally:
            ended.set()

    def interrupting() -> None:
        assert started.wait(60)
        import _thread

        _thread.interrupt_main()
        endless()

    with pytest.raises(KeyboardInterrupt):
        in_threads([endless, interrupting], 2)
    assert ended.wait(60)
