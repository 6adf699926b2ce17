import gc
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.stages import Stage, StageError, StagePipeline, StageTime, limit_words, limiting


@given(st.integers(0, 60), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=3))
def test_order_is_kept_for_any_threads_and_depths(count, shapes):
    stages = [Stage(str(i), lambda item: item + 1, threads, depth) for i, (threads, depth) in enumerate(shapes)]
    with StagePipeline(range(count), stages) as flow:
        assert list(flow) == [i + len(stages) for i in range(count)]
    assert not _threads_of(stages)


def test_no_more_items_are_alive_than_the_depths_allow():
    alive = peak = 0
    lock = threading.Lock()

    def begin(item):
        nonlocal alive, peak
        with lock:
            alive += 1
            peak = max(peak, alive)
        return item

    with StagePipeline(range(500), [Stage("a", begin, 3, 4), Stage("b", lambda item: item, 2, 3)]) as flow:
        for _ in flow:
            with lock:
                alive -= 1
    # What stage a has begun and the consumer has not finished: a's depth, b's depth and threads, and one consumed.
    assert peak <= 4 + 3 + 3 + 2 + 1


def test_threads_of_one_stage_work_at_the_same_time():
    together = threading.Barrier(3, timeout=60)
    with StagePipeline(range(9), [Stage("meet", lambda item: (together.wait(), item)[1], 3, 3)]) as flow:
        assert list(flow) == list(range(9))


@pytest.mark.parametrize("broken", ["source", "first", "second"])
def test_an_exception_anywhere_reaches_the_consumer_with_its_cause(broken):
    def work(name):
        def body(item):
            if name == broken and item == 5:
                raise ValueError(f"in {name}")
            return item

        return body

    def source():
        for i in range(50):
            yield work("source")(i)

    stages = [Stage("first", work("first"), 2, 2), Stage("second", work("second"), 2, 2)]
    with pytest.raises(StageError) as failure, StagePipeline(source(), stages) as flow:
        for _ in flow:
            pass
    assert failure.value.stage == broken
    assert failure.value.number == 5
    assert str(failure.value.__cause__) == f"in {broken}"
    assert "body" in [frame.name for frame in _frames(failure.value.__cause__)]
    assert not _threads_of(stages)


def test_leaving_early_ends_every_thread_and_lets_go_of_items():
    stages = [Stage("slow", lambda item: item, 2, 4), Stage("next", lambda item: item, 2, 4)]
    before = threading.active_count()
    with StagePipeline(iter(int, 1), stages) as flow:
        for _ in flow:
            break
    assert threading.active_count() == before
    gc.collect()
    with pytest.raises(KeyboardInterrupt), StagePipeline(iter(int, 1), stages) as flow:
        for _ in flow:
            raise KeyboardInterrupt
    assert threading.active_count() == before


def test_times_say_which_stage_limits():
    def busy(item):
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        return item

    with StagePipeline(range(20), [Stage("quick", lambda item: item), Stage("busy", busy)], ("in", "out")) as flow:
        list(flow)
        times = flow.times()
    assert list(times) == ["in", "quick", "busy", "out"]
    assert times["busy"].busy >= 0.2
    assert limiting(times) == "busy"
    assert limit_words(times) == "busy limits" and limit_words({}) == "nothing limits"
    # Passes in turn do not hold each other up.
    passes = {name: StageTime(busy, 10 - busy, 1, 1) for name, busy in (("forward", 1), ("backward", 9))}
    assert limit_words(passes) == "backward 90 % of a step"
    assert StageTime(3, 1, 1, 1).since(StageTime(1, 1, 1, 1)) == StageTime(2, 0, 1, 1)


def test_a_recorder_hears_of_every_piece_of_work():
    heard = []
    with StagePipeline(range(7), [Stage("a", lambda i: i, 2)], recorder=lambda *event: heard.append(event)) as flow:
        list(flow)
    assert sorted(e[4] for e in heard if e[0] == "a") == list(range(7))
    assert sum(e[0] == "consumer" for e in heard) == 7
    assert all(start <= end for _, _, start, end, _ in heard)


def _threads_of(stages):
    return [t for t in threading.enumerate() if t.name.rsplit("-", 1)[0] in {stage.name for stage in stages}]


def _frames(error):
    import traceback

    return traceback.extract_tb(error.__traceback__)


def test_a_source_that_cannot_be_gone_through_is_a_failure_not_a_wait():
    class Broken:
        def __iter__(self):
            raise ValueError("no items")

    with pytest.raises(StageError) as failure, StagePipeline(Broken(), [Stage("a", lambda item: item)]) as flow:
        list(flow)
    assert str(failure.value.__cause__) == "no items"


def test_a_thread_that_cannot_start_leaves_none_behind(monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("late"):
            raise RuntimeError("no more threads")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = threading.active_count()
    with (
        pytest.raises(RuntimeError, match="no more threads"),
        StagePipeline(range(9), [Stage("late", lambda item: item)]),
    ):
        pass
    assert threading.active_count() == before


def test_waiting_for_validation_makes_no_stage_the_limit():
    assert limiting({"sample": StageTime(10, 90, 1, 2), "compute": StageTime(4, 1, 1, 1)}) == "sample"
    assert limiting({"sample": StageTime(10, 0, 4, 2), "compute": StageTime(4, 1, 1, 1)}) == "compute"
