"""Bodies of any kind are what a request must be, or a PenstockError: nothing else comes of them."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.cluster import reports, server
from penstock.errors import PenstockError
from penstock.sampling.parts import requests as sampling
from penstock.store.parts import requests as store
from penstock.wire.message import Message
from refusals import refused

FORMS = [
    each
    for module in (reports, server, sampling, store)
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, store.StoreRequest | sampling.StrictRequest)
]
NAMES = sorted({name for form in FORMS for name in form.model_fields})
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
bodies = st.dictionaries(st.sampled_from(NAMES), values, max_size=6) | st.dictionaries(
    st.text(max_size=4), values, max_size=3
)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.sampled_from(FORMS), bodies)
def test_bodies_of_any_kind(form: Any, body: dict[str, Any]) -> None:
    check: Any = sampling.read_body if issubclass(form, sampling.StrictRequest) else store.checked
    with suppress(PenstockError):
        assert isinstance(check(Message("fuzzed", body), form), form)


HUGE = 1 << 62


@given(
    st.lists(st.lists(st.integers(0, HUGE), max_size=1), max_size=3),
    st.lists(st.lists(st.text(min_size=1, max_size=3), max_size=2), max_size=3),
    st.lists(st.sampled_from(["f4", "f8", "i8", "u1"]), max_size=4),
    st.integers(0, 3),
)
@example([[HUGE], [HUGE]], [["m"], ["m"]], ["f4", "f4", "f4"], 0)
def test_servers_begin_with_what_fits(shapes: Any, names: Any, dtypes: list[str], size: int) -> None:
    """Sizes of any kind are compared with what came before anything is made of them."""
    message = Message("begin", {}, tuple(np.zeros(size, dtype) for dtype in dtypes))
    asked = server.Begin(step=0, shapes=shapes, names=names, again=False)
    try:
        weights, states = server.begun_with(message, asked)
    except PenstockError:
        return
    assert weights.numel() == size and len(states) == len(shapes)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("here", {"address": "tcp://a b", "ready": True, "incarnation": 0}),
        ("here", {"address": "nowhere", "ready": True, "incarnation": 0}),
        ("beat", {"incarnation": 0, "counts": {"received": "many"}}),
        ("beat", {"incarnation": 0, "flows": {"a>b": "x"}}),
        ("beat", {"incarnation": 0, "spans": [[0, 0, 0, 1, 0]]}),
        ("beat", {"incarnation": 0, "spans": [[99, 0, 0, 1, 0, 0]]}),
        ("beat", {"incarnation": 0, "spans": [[0, -1, 0, 1, 0, 0]]}),
        ("beat", {"incarnation": 0, "spans": [[0, 0, 0, -1, 0, 0]]}),
        ("beat", {"incarnation": 0, "spans": [[0, 0, 0.5, 1, 0, 0]]}),
        ("beat", {"incarnation": 0, "spans": [[0, 0, 0, 1, 0, 0]] * 4_001}),
        ("progress", {"what": "advance", "amount": "x"}),
        ("progress", {"what": "advance", "amount": 1.5}),
        ("result", {}),
        ("result", {"state": 3}),
        ("failed", {"message": 3}),
    ],
)
def test_the_controller_refuses_what_it_could_not_use(kind: str, body: dict[str, Any]) -> None:
    forms = {
        "here": reports.Registered,
        "beat": reports.Heartbeat,
        "progress": reports.StepReport,
        "result": reports.Result,
        "failed": reports.Failed,
    }
    with refused(f"malformed-message '{kind}'"):
        store.checked(Message(kind, body), forms[kind])
