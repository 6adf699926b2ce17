"""The three documents of paths: what ships is valid, what is wrong is one sentence."""

import numpy as np
import pytest
import yaml

from penstock.paths import build_routes, find_application, find_hardware
from penstock.paths.documents import (
    ApplicationDocument,
    HardwareDocument,
    MetricsDocument,
    PathMetrics,
    read_application,
    read_hardware,
    read_metrics,
    shipped_applications,
    shipped_hardware,
    write_metrics,
)
from penstock.paths.route_table import COMMON, NETWORK
from refusals import refused

HARDWARE = {
    "name": "two",
    "nodes": {"a": {}, "b": {"capacity": 3}, "c": {}},
    "links": {
        "ab": {"gbps": 8, "latency_us": 1},
        "ac": {"gbps": 8, "mops": 0.5},
        "net": {"gbps": 80, "latency_us": 2, "jitter_us": [1, 3], "network": True},
    },
    "routes": {"a > b": ["net", "ab"], "a > c": ["net", "ac"]},
}
APPLICATION = {
    "name": "toy",
    "hardware": "two",
    "workloads": {"all": {"ask": 1}},
    "requests": {
        "ask": {
            "paths": {
                "b": [{"go": ["a", "b"], "bytes": 1000}, {"compute": "b", "us": 6}],
                "c": [{"go": ["a", "c"], "bytes": 1000}, {"compute": "c", "us": 2}],
            }
        }
    },
}


def test_what_ships_fits_together():
    for name in shipped_applications():
        application = find_application(name)
        table = build_routes(application, find_hardware(application.hardware))
        assert application.made, "numbers of ours are labelled"
        assert (table.routes.base > 0).all() and (table.routes.end_to_end > table.routes.base).all()
    assert {"direct", "on-path", "off-path"} <= set(shipped_hardware())
    assert set(shipped_applications()) == {"key-value-store", "file-system", "block-storage", "all-reduce"}


def test_put_has_one_path_and_get_two():
    table = build_routes(find_application("key-value-store"), find_hardware("off-path"))
    get, put = (table.types.index(name) for name in ("get", "put"))
    assert [table.paths[path] for path in table.paths_of(get)] == ["acc", "cpu"]
    assert [table.paths[path] for path in table.paths_of(put)] == ["cpu"]
    assert "responder.acc" in table.visited(0) and "responder.acc" not in table.visited(1)
    assert table.type_of(2) == put


def test_times_follow_from_bytes_rates_and_latencies():
    table = build_routes(ApplicationDocument(**APPLICATION), HardwareDocument(**HARDWARE))
    routes = table.routes
    assert table.visited(0) == ["net", "ab", "b"]
    assert routes.service.tolist() == pytest.approx([0.1, 1.0, 6.0, 0.1, 2.0, 2.0])
    assert routes.base.tolist() == pytest.approx([8.0, 4.0])
    assert routes.end_to_end.tolist() == pytest.approx([12.1, 8.1])
    assert routes.distinct.tolist() == pytest.approx([8.0, 4.0])
    assert routes.toll_per_place.tolist() == pytest.approx([3.0, 4.0]), (
        "a node with three places delays others by a third"
    )
    assert routes.flags.tolist() == [NETWORK | COMMON, 0, 0, NETWORK | COMMON, 0, 0]
    assert np.array_equal(routes.capacity, [1, 3, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"links": {"ab": {"gbps": 0}}}, "invalid-document links.ab.gbps"),
        ({"links": {"ab": {"gbps": 1, "jitter_us": [3, 1]}}}, "invalid-document jitter_us"),
        ({"links": {"b": {"gbps": 1}}}, "invalid-document 'b'"),
        ({"routes": {"a > z": []}}, "invalid-document 'a > z'"),
        ({"routes": {"a > b": ["nowhere"]}}, "invalid-document nowhere"),
        ({"nodes": {"a": {"capacity": 0}}}, "invalid-document capacity"),
        ({"speed": 3}, "invalid-document speed"),
    ],
)
def test_a_wrong_hardware_file_is_a_sentence(change, expected, tmp_path):
    file = tmp_path / "hardware.yaml"
    file.write_text(yaml.safe_dump(HARDWARE | change))
    with refused(expected):
        read_hardware(file)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"workloads": {"all": {"tell": 1}}}, "invalid-document tell"),
        ({"workloads": {"all": {}}}, "invalid-document workloads.all"),
        ({"requests": {"ask": {"paths": {"b": [{"bytes": 3}]}}}}, "invalid-document go compute"),
        ({"requests": {"ask": {"paths": {"b": [{"compute": "b", "bytes": 3}]}}}}, "invalid-document bytes"),
        ({"requests": {"ask": {"paths": {"b": []}}}}, "invalid-document paths.b"),
        ({"requests": {"ask": {"paths": {"b": [{"compute": "b", "us": float("nan")}]}}}}, "invalid-document us"),
        ({"requests": {"ask": {"depends": "key", "paths": {"b": [{"compute": "b"}]}}}}, "invalid-document depends"),
    ],
)
def test_a_wrong_application_file_is_a_sentence(change, expected, tmp_path):
    file = tmp_path / "application.yaml"
    file.write_text(yaml.safe_dump(APPLICATION | change))
    with refused(expected):
        read_application(file)


def test_an_application_that_the_hardware_cannot_carry_is_refused():
    lacking = HardwareDocument(**(HARDWARE | {"routes": {"a > b": ["net", "ab"]}}))
    with refused("mismatched-inputs toy requests.ask.paths.c 'a"):
        build_routes(ApplicationDocument(**APPLICATION), lacking)
    with refused("mismatched-inputs off-path 'a'"):
        build_routes(ApplicationDocument(**APPLICATION), find_hardware("off-path"))


def test_unknown_names_are_sentences():
    with refused("unknown-name key-value-stor key-value-store"):
        find_application("key-value-stor")
    with refused("file-not-found mine.yaml"):
        find_hardware("mine.yaml")


def test_metrics_survive_a_file(tmp_path):
    metrics = MetricsDocument(
        application="toy",
        hardware="two",
        requests={
            "ask": {
                "b": PathMetrics(
                    base_us=8, end_to_end_us=12, distinct_us=8, toll_us=3, toll_per_place_us=3, interval_us=2
                )
            },
        },
    )
    write_metrics(metrics, tmp_path / "metrics.yaml")
    assert read_metrics(tmp_path / "metrics.yaml") == metrics
    (tmp_path / "metrics.yaml").write_text("application: toy\nhardware: two\nrequests: {ask: {b: {base_us: -1}}}\n")
    with refused("invalid-document base_us"):
        read_metrics(tmp_path / "metrics.yaml")
