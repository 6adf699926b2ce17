"""What travels unprotected is said at a run's start, and nothing else is."""

import pytest

from penstock.cluster.layout import chosen_reduction, lay_out
from penstock.cluster.run import exposures
from penstock.hardware.cluster import ClusterDocument

TWO = [
    {"name": "a", "workers": 1, "address": "10.0.0.1"},
    {"name": "b", "workers": 1, "address": "10.0.0.2"},
]
ONE = [{"name": "a", "workers": 2}]


def said(machines: list[dict[str, object]], **fields: object) -> str:
    cluster = ClusterDocument.model_validate({"machines": machines, **fields})
    return " ".join(exposures(cluster, lay_out(cluster, len(machines))))


@pytest.mark.parametrize("machines", [ONE, TWO])
def test_what_is_not_encrypted_is_named(machines: list[dict[str, object]]) -> None:
    found = said(machines, wire={"security": "token"}, reduction="wire")
    assert "token encrypts nothing" in found and "Gradients" not in found


def test_sums_outside_the_wire_are_named() -> None:
    found = said(TWO, reduction="torch")
    assert "Gradients travel in the clear between 2 hosts" in found and "reduction: wire" in found


@pytest.mark.parametrize(
    ("machines", "fields"),
    [(ONE, {}), (ONE, {"reduction": "torch"}), (TWO, {}), (TWO, {"reduction": "wire"}), (TWO, {"reduce": "servers"})],
)
def test_where_nothing_is_exposed_nothing_is_said(machines: list[dict[str, object]], fields: dict[str, object]) -> None:
    assert said(machines, **fields) == ""


@pytest.mark.parametrize(
    ("machines", "fields", "expected"),
    [
        (ONE, {}, "torch"),
        (TWO, {}, "wire"),
        (TWO, {"reduction": "torch"}, "torch"),
        (ONE, {"reduction": "wire"}, "wire"),
        ([{"name": "a"}, {"name": "b"}], {}, "torch"),
        # Where a launcher finds machines that say nothing of their place they may be anywhere.
        ([{"name": "a"}, {"name": "b"}], {"launcher": "ray"}, "wire"),
        ([{"name": "a", "workers": 2}], {"launcher": "ray"}, "torch"),
        ([{"name": "a", "address": "10.0.0.1"}, {"name": "b", "address": "10.0.0.2", "workers": 0}], {}, "torch"),
    ],
)
def test_gradients_leave_a_host_on_the_wire_unless_the_file_says_otherwise(
    machines: list[dict[str, object]], fields: dict[str, object], expected: str
) -> None:
    cluster = ClusterDocument.model_validate({"machines": machines, **fields})
    assert chosen_reduction(cluster, lay_out(cluster, len(machines))) == expected
