"""Cluster files: good ones, and one sentence for every bad one."""

import json

import pytest
import torch
import yaml

from penstock.cluster.cluster_file import read_cluster
from penstock.cluster.layout import read_setup
from penstock.cluster.run import cluster_of
from penstock.errors import PenstockError
from refusals import refused


def written(folder, fields):
    """A cluster file."""
    path = folder / "cluster.yaml"
    path.write_text(fields if isinstance(fields, str) else yaml.safe_dump(fields))
    return str(path)


def test_short_form():
    cluster = read_cluster("3x2")
    assert [machine.name for machine in cluster.machines] == ["m0", "m1", "m2"] and cluster.workers == 6


@pytest.mark.parametrize("gpus, each", [(0, [0, 0]), (3, [2, 1]), (8, [2, 2])])
def test_short_form_has_the_gpus_of_this_host(monkeypatch, gpus, each):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert [machine.gpus for machine in read_cluster("2x2").machines] == each


def test_partition_is_relative_to_the_file(tmp_path):
    cluster = read_cluster(written(tmp_path, {"machines": [{"name": "a"}], "partition": "parts"}))
    assert cluster.partition == str((tmp_path / "parts").resolve())


A, B = {"name": "a"}, {"name": "b", "workers": 0}


@pytest.mark.parametrize(
    "fields, said",
    [
        ({}, "invalid-document machines"),
        ({"machines": []}, "invalid-document machines"),
        ({"machines": [A, A]}, "invalid-document"),
        ({"machines": [{"name": "a", "workers": 0}]}, "invalid-document"),
        ({"machines": [{"name": "a", "workers": -1}]}, "invalid-document workers"),
        ({"machines": [{"name": "a b"}]}, "invalid-document name"),
        ({"machines": [{"name": "../a"}]}, "invalid-document name"),
        ({"machines": [{"name": "a", "speed": 0}]}, "invalid-document speed"),
        ({"machines": [{"name": "a", "colour": "red"}]}, "invalid-document colour"),
        ({"machines": [A], "launcher": "pigeon"}, "invalid-document launcher"),
        ({"machines": [A], "reduce": "sometimes"}, "invalid-document reduce"),
        ({"machines": [A], "samplers": 99}, "invalid-document samplers"),
        ({"machines": [A], "failure": {"patience": 0}}, "invalid-document patience"),
        ({"machines": [A], "failure": {"restarts": -1}}, "invalid-document restarts"),
        ({"machines": [A], "wire": {"security": "none"}}, "invalid-document security"),
        ({"machines": [A], "wire": {"security": "aes"}}, "invalid-document wire.security aes tls"),
        ({"machines": [A], "wire": {"security": "curve"}}, "invalid-document wire.security curve tls"),
        ({"machines": [A], "wire": {"tls_ca": "ca.pem"}}, "invalid-document wire tls_cert tls_key"),
        (
            {"machines": [A], "wire": {"security": "token", "tls_ca": "a", "tls_cert": "b", "tls_key": "c"}},
            "invalid-document wire token tls",
        ),
        ({"machines": [A], "remote_cache_mb": -1}, "invalid-document remote_cache_mb"),
        ({"machines": [A], "replicas": [{"part": 0, "machine": "b"}]}, "invalid-document replicas[0] 'b'"),
        ({"machines": [A, B], "replicas": [{"part": 0, "machine": "b"}] * 2}, "invalid-document replicas[1] already"),
        ({"machines": [A], "replicas": [{"part": -1, "machine": "a"}]}, "invalid-document part"),
        ({"machines": [A], "replicas": [{"part": 0, "machine": "a", "rows": 0}]}, "invalid-document rows"),
        ({"machines": [A], "replicas": [{"part": 0, "machine": "a", "rows": 1.5}]}, "invalid-document rows"),
        ({"machines": [A], "feature_paths": []}, "invalid-document feature_paths"),
        ({"machines": [A], "feature_paths": ["pigeon"]}, "invalid-document feature_paths"),
        ("machines: [", "invalid-document cluster.yaml"),
        ("- a\n- b\n", "invalid-document cluster.yaml"),
    ],
)
def test_bad_cluster_is_one_sentence(tmp_path, fields, said):
    with refused(said) as caught:
        read_cluster(written(tmp_path, fields))
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("name", ["0x2", "2x", "nowhere.yaml", "2x2x2"])
def test_no_such_cluster(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PenstockError) as caught:
        read_cluster(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", "no JSON", '{"task": 3}'])
def test_setup_that_is_none(text):
    with refused("invalid-document") as caught:
        read_setup(text)
    assert "\n" not in str(caught.value)


def test_a_run_of_an_earlier_release_resumes_over_tls(tmp_path):
    """Its cluster.json names an encryption that is gone; a file that somebody writes today is refused."""
    old = {"machines": [{"name": "a"}], "wire": {"security": "aes"}, "reduction": "torch"}
    (tmp_path / "cluster.json").write_text(json.dumps(old))
    found = cluster_of(tmp_path)
    assert found.wire.security == "tls" and found.reduction == "torch"
    with refused("invalid-document write tls"):
        read_cluster(written(tmp_path, old))
