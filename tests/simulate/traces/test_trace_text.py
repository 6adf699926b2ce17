"""The text of a trace: read, written, and refused line by line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.simulate.traces import simulate_trace
from penstock.simulate.traces import trace as text_module
from penstock.simulate.traces.trace import made_trace, read_trace, write_trace
from refusals import refused

GOOD = "4 2\n1 0 1 2 1 3:1.0\n2 10833 2 1 1 2 0:48.0 3:7.5\n"


def same(one, other):
    return one.ports == other.ports and all(
        np.array_equal(getattr(one, field), getattr(other, field)) for field in one.__dataclass_fields__
    )


def test_reading(tmp_path):
    (tmp_path / "trace.txt").write_text(GOOD)
    trace = read_trace(tmp_path / "trace.txt")
    assert (trace.ports, trace.count, trace.names.tolist()) == (4, 2, [1, 2])
    coflows = trace.coflows
    # Both mappers of the second coflow are at port 1: their halves are one flow.
    assert coflows.arrivals.tolist() == [0, 10.833]
    assert coflows.first.tolist() == [0, 1, 3]
    assert coflows.sources.tolist() == [2, 1, 1]
    assert coflows.targets.tolist() == [3, 0, 3]
    assert coflows.sizes.tolist() == [1e6, 48e6, 7.5e6]


@given(ports=st.integers(1, 20), coflows=st.integers(1, 12), seed=st.integers(0, 1000))
def test_round_trip(tmp_path_factory, ports, coflows, seed):
    path = tmp_path_factory.mktemp("traces") / "trace.txt"
    trace = made_trace(ports, coflows, 5.0, seed)
    write_trace(trace, path)
    assert same(read_trace(path), trace)
    text = path.read_text()
    write_trace(read_trace(path), path)
    assert path.read_text() == text


def test_fractions_survive_writing(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_text("2 1\n\n9 0.1 1 0 1 1:0.3333333333333333\n\n")
    write_trace(read_trace(path), path)
    assert path.read_text() == "2 1\n9 0.1 1 0 1 1:0.3333333333333333\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: the file is empty"),
        ("4\n", "line 1: the number of coflows is missing"),
        ("4 x\n", "line 1: the number of coflows is 'x'; give a whole number from 1 to"),
        ("0 1\n", "line 1: the number of ports is '0'"),
        ("999999999 1\n", "line 1: the number of ports is '999999999'"),
        ("4 1 1\n", "line 1: '1' is one word too many"),
        ("4 2\n1 0 1 2 1 3:1.0\n", "line 2: only 1 of 2 coflows are there"),
        ("4 1\n1 0 1 2 1 3:1.0\n2 0 1 2 1 3:1.0\n", "line 3: more than the 1 coflows"),
        ("4 2\n1 0 1 2 1 3:1.0\n1 0 1 2 1 3:1.0\n", "line 3: coflow 1 is there twice"),
        ("4 1\n-1 0 1 2 1 3:1.0\n", "line 2: the coflow's number is '-1'"),
        ("4 1\n1 soon 1 2 1 3:1.0\n", "line 2: the arrival in milliseconds is 'soon'"),
        ("4 1\n1 -5 1 2 1 3:1.0\n", "line 2: the arrival in milliseconds is '-5'"),
        ("4 1\n1 nan 1 2 1 3:1.0\n", "line 2: the arrival in milliseconds is 'nan'"),
        ("4 1\n1 1_0 1 2 1 3:1.0\n", "line 2: the arrival in milliseconds is '1_0'"),
        ("4 1\n1 0 0 1 3:1.0\n", "line 2: the number of mappers is '0'"),
        ("4 1\n1 0 3 2 1 3:1.0\n", "line 2: a mapper's location is '3:1.0'"),
        ("4 1\n1 0 1 4 1 3:1.0\n", "line 2: a mapper's location is '4'; give a whole number from 0 to 3"),
        ("4 1\n1 0 1 2\n", "line 2: the number of reducers is missing"),
        ("4 1\n1 0 1 2 2 3:1.0\n", "line 2: a reducer is missing"),
        ("4 1\n1 0 1 2 1 3\n", "line 2: a reducer is '3'; write location:megabytes"),
        ("4 1\n1 0 1 2 1 7:1.0\n", "line 2: a reducer's location is '7'"),
        ("4 1\n1 0 1 2 1 3:inf\n", "line 2: a reducer's megabytes is 'inf'"),
        ("4 1\n1 0 1 2 1 3:1.0:2\n", "line 2: a reducer's megabytes is '1.0:2'"),
        ("4 1\n1 0 1 2 1 3:1.0 1:1.0\n", "line 2: '1:1.0' is one word too many"),
        ("4 1\n1 0 1 \u00b2 1 3:1.0\n", "line 2: a mapper's location"),
        ("4 1\n1 0 " + "9" * 5000 + "\n", "line 2: the number of mappers is '9999"),
    ],
)
def test_every_bad_line_gets_a_sentence(tmp_path, text, sentence):
    path = tmp_path / "bad.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PenstockError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}, {sentence}") and str(error.value).endswith(".")


@given(noise=st.text("0123456789 :.\n-e", max_size=40))
def test_noise_is_read_or_refused(tmp_path_factory, noise):
    path = tmp_path_factory.mktemp("traces") / "noise.txt"
    path.write_text("2 1\n" + noise)
    try:
        trace = read_trace(path)
    except PenstockError as error:
        assert str(path) in str(error)
    else:
        assert simulate_trace(trace, "fifo", 1e6).makespan_s >= 0


def test_limits_and_places(tmp_path, monkeypatch):
    path = tmp_path / "trace.txt"
    with refused("file-not-found"):
        read_trace(path)
    with refused("write-failed"):
        write_trace(made_trace(2, 2), tmp_path / "no" / "folder.txt")
    path.write_text(GOOD)
    monkeypatch.setattr(text_module, "MOST_FLOWS", 4)
    with refused("invalid-document 3 4"):
        read_trace(path)
    monkeypatch.setattr(text_module, "_LONGEST_LINE", 20)
    with refused("invalid-document 3 20"):
        read_trace(path)


def test_made_traces():
    trace = made_trace(150, 300, 1000.0, 5)
    assert same(trace, made_trace(150, 300, 1000.0, 5)) and not same(trace, made_trace(150, 300, 1000.0, 6))
    assert (np.diff(trace.arrivals_ms) >= 0).all() and trace.arrivals_ms[0] == 0
    # A sum of 299 exponential gaps: mean 1000 s, deviation 1000 / sqrt(299) = 58 s.
    assert abs(trace.arrivals_ms[-1] / 1e3 - 1000) < 4 * 58
    coflows = trace.coflows
    sizes = np.sort(np.add.reduceat(coflows.sizes, coflows.first[:-1]))
    # Heavy-tailed: the larger tenth of coflows has most bytes, the smaller half next to none.
    assert sizes[-30:].sum() > 0.5 * sizes.sum() and sizes[:150].sum() < 0.02 * sizes.sum()
    for bad in ((0, 1, 1.0), (1, 0, 1.0), (1, 1, -1.0), (1, 1, float("nan"))):
        with refused("value-out-of-range"):
            made_trace(*bad)


def test_a_name_that_no_file_can_have():
    with refused("invalid-value"):
        read_trace("a\0b")
