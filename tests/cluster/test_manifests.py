"""Manifests for the schedulers of clusters: what they ask for, and the command that they run."""

import json
import os
import subprocess
from itertools import pairwise

import pytest
import yaml

from in_process import answer, refusal
from penstock.cluster.manifests import MANIFESTS, SubmittedRun, default_name, manifest_of
from penstock.hardware.cluster import ClusterDocument, Machine
from refusals import refused

BIG = {"workers": 2, "cores": 16, "memory_gb": 128, "gpus": 2}
SMALL = {"cores": 8, "memory_gb": 32.5}
ON_VOLUME = SubmittedRun(
    "big", "/data/job.yaml", "/data/c.yaml", "/data/runs/big", "registry/penstock:1", "claim:/data"
)


def cluster_of(launcher, *machines):
    return ClusterDocument(machines=[Machine(name=name, **fields) for name, fields in machines], launcher=launcher)


@pytest.fixture
def mixed():
    return cluster_of("environment", ("a", BIG), ("b", SMALL), ("c", SMALL), ("d", BIG), ("e", {}))


def components(script):
    """The options of each component of a heterogeneous job."""
    lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
    shared, *rest = lines
    assert shared.startswith("--job-name=")
    return [dict(word[2:].partition("=")[::2] for word in line.split()) for line in rest if line != "hetjob"]


def test_slurm_gets_machines_in_the_order_of_the_file(mixed):
    script = manifest_of(mixed, SubmittedRun("x", "job.yaml", "c.yaml", "runs/x"), "slurm")
    found = components(script)
    assert [(each["nodes"], each.get("cpus-per-task"), each.get("gpus-per-node")) for each in found] == [
        ("1", "16", "2"),
        ("2", "8", None),
        ("1", "16", "2"),
        ("1", None, None),
    ]
    assert [each["mem"] for each in found] == ["128000M", "32500M", "128000M", "0"]
    assert "exclusive" in found[-1]
    assert script.count("#SBATCH hetjob") == 3
    assert "srun --het-group=0-3 " in script


def test_alike_machines_are_an_ordinary_job():
    script = manifest_of(
        cluster_of("environment", ("a", SMALL), ("b", SMALL)), SubmittedRun("x", "j", "c", "r"), "slurm"
    )
    assert len(components(script)) == 1
    assert "het" not in script


PENSTOCK = '#!/bin/bash\nprintf "%s\\n" "$PENSTOCK_SECRET" "$@"\n'
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\n"$@"; "$@"\n'


def test_the_script_trains_and_then_goes_on_with_the_run(tmp_path):
    """With a `srun` of two processes, which have one random key."""
    for name, text in ("penstock", PENSTOCK), ("srun", SRUN):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    run = tmp_path / "runs of mine" / "x"
    script = manifest_of(
        cluster_of("environment", ("a", {})), SubmittedRun("x", "my job.yaml", "c.yaml", str(run)), "slurm"
    )

    def started():
        asked = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        asked.pop("PENSTOCK_SECRET", None)
        said = subprocess.run(["bash", "-c", script], env=asked, capture_output=True, text=True, check=True).stdout
        words = said.splitlines()
        assert words[: len(words) // 2] == words[len(words) // 2 :]
        return words[: len(words) // 2]

    secret, *words = started()
    assert len(secret) == 64
    assert set(secret) <= set("0123456789abcdef")
    assert words == ["train", "my job.yaml", "--cluster", "c.yaml", "--run", str(run)]
    run.mkdir(parents=True)
    (run / "run.json").touch()
    other, *words = started()
    assert other != secret
    assert words == ["train", "--resume", str(run)]


# Fields of RayJob (ray.io/v1) and of what it holds, and their types.
JOB_FIELDS = {"entrypoint": str, "shutdownAfterJobFinishes": bool, "backoffLimit": int, "rayClusterSpec": dict}
CLUSTER_FIELDS = {"headGroupSpec": dict, "workerGroupSpecs": list}
HEAD_FIELDS = {"rayStartParams": dict, "template": dict}
GROUP_FIELDS = {**HEAD_FIELDS, "groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}


def checked(fields, known):
    """A part of the document, all of whose fields are known and of the right type."""
    assert fields.keys() == known.keys()
    assert all(type(fields[name]) is kind for name, kind in known.items())
    return fields


def test_kuberay_gets_a_group_for_each_machine():
    cluster = cluster_of("ray", ("Gpu_1", BIG), ("gpu-1", SMALL), ("9", {}))
    document = yaml.safe_load(manifest_of(cluster, ON_VOLUME, "kuberay"))
    assert (document["apiVersion"], document["kind"], document["metadata"]) == ("ray.io/v1", "RayJob", {"name": "big"})
    spec = checked(checked(document["spec"], JOB_FIELDS)["rayClusterSpec"], CLUSTER_FIELDS)
    head = checked(spec["headGroupSpec"], HEAD_FIELDS)
    assert head["rayStartParams"] == {"num-cpus": "0"}
    groups = [checked(group, GROUP_FIELDS) for group in spec["workerGroupSpecs"]]
    assert [group["groupName"] for group in groups] == ["gpu-1", "gpu-1-1", "m-9"]
    assert all(group[name] == 1 for group in groups for name in ("replicas", "minReplicas", "maxReplicas"))
    named = [json.loads(group["rayStartParams"]["resources"].strip("'")) for group in groups]
    assert named == [{"machine:Gpu_1": 1}, {"machine:gpu-1": 1}, {"machine:9": 1}]
    asked = [group["template"]["spec"]["containers"][0]["resources"] for group in groups]
    assert asked[0]["limits"] == {"cpu": "16", "memory": "128000M", "nvidia.com/gpu": "2"}
    assert asked[1]["requests"] == {"cpu": "8", "memory": "32500M"}
    assert asked[2] == {"requests": {}, "limits": {}}


def test_pods_are_what_kubernetes_takes():
    schemas = pytest.importorskip("kubernetes_validate", reason="Kubernetes's own schemas are in kubernetes-validate")
    document = yaml.safe_load(manifest_of(cluster_of("ray", ("a", BIG)), ON_VOLUME, "kuberay"))
    spec = document["spec"]["rayClusterSpec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}
        schemas.validate(pod, schemas.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image": None}, "option-missing --image"),
        ({"volume": "claim"}, "invalid-value CLAIM:PATH"),
        ({"name": "Big"}, "invalid-value 'Big' small letters"),
        ({"run": "runs/big"}, "invalid-value runs/big /data"),
        ({"job": "/elsewhere/job.yaml"}, "invalid-value /elsewhere/job.yaml /data"),
    ],
)
def test_what_kubernetes_could_not_run_is_refused(change, sentence):
    with refused(sentence):
        manifest_of(cluster_of("ray", ("a", {})), SubmittedRun(**{**vars(ON_VOLUME), **change}), "kuberay")


def test_the_launcher_must_be_the_schedulers():
    for scheduler, other in pairwise([*MANIFESTS, next(iter(MANIFESTS))]):
        with refused(f"unsupported-combination launcher: {MANIFESTS[scheduler].launcher}"):
            manifest_of(cluster_of(MANIFESTS[other].launcher, ("a", {})), ON_VOLUME, scheduler)


def test_a_name_is_one_word_of_a_script():
    with refused("invalid-value 'a b' --name"):
        manifest_of(cluster_of("environment", ("a", {})), SubmittedRun("a b", "j", "c", "r"), "slurm")


def test_default_names():
    assert [default_name(run) for run in ("runs/Big_1", "/data/runs/x/", ".")] == ["big-1", "x", "penstock"]


def test_the_command_writes_and_refuses(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("machines: [{name: a, cores: 2}]\nlauncher: environment\n")
    (tmp_path / "open.yaml").write_text("machines: ray\n")
    words = "cluster", "manifest", "c.yaml", "--for", "slurm", "--run", "runs/x"
    told = answer(monkeypatch, capsys, *words, "-o", "x.sh")
    assert (told["name"], told["path"]) == ("x", "x.sh")
    assert (tmp_path / "x.sh").read_text() == told["manifest"]
    assert answer(monkeypatch, capsys, *words) == {**told, "path": None}
    for changed, sentence in (
        ((*words, "-o", "x.sh"), "x.sh exists"),
        (("cluster", "manifest", "none.yaml", "--for", "slurm"), "no cluster file none.yaml"),
        (("cluster", "manifest", "open.yaml", "--for", "kuberay"), "open.yaml leaves its machines to the launcher"),
        (("cluster", "manifest", "c.yaml", "--for", "slurmm"), "did you mean 'slurm'"),
    ):
        assert sentence in refusal(monkeypatch, capsys, *changed)
