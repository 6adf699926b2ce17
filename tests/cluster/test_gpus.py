"""Which processor a cluster computes on, what is refused, and how a worker finds its own GPU."""

import os
from types import SimpleNamespace

import pytest
import torch
from wired import template_for

from penstock.cluster import gpus, run
from penstock.cluster.layout import lay_out
from penstock.cluster.worker.device_placement import check_for_gpus
from penstock.hardware.cluster import ClusterDocument, Machine
from penstock.train.job import make_job
from refusals import refused


def cluster_of(*counts, **fields):
    """Machines m0, m1, … with (workers, GPUs) each."""
    machines = [Machine(name=f"m{i}", workers=workers, gpus=count) for i, (workers, count) in enumerate(counts)]
    return ClusterDocument(machines=machines, **fields)


@pytest.mark.parametrize(
    "device, counts, chosen",
    [
        ("cpu", [(1, 1)], "cpu"),
        ("auto", [(1, 0), (2, 0)], "cpu"),
        ("auto", [(2, 2), (1, 4), (0, 0)], "cuda"),
        ("cuda", [(2, 2), (1, 1), (0, 0)], "cuda"),
    ],
)
def test_all_workers_compute_alike(device, counts, chosen):
    assert gpus.chosen_for_all(device, cluster_of(*counts)) == (chosen, None)


@pytest.mark.parametrize("counts, said", [([(1, 1), (1, 0)], "m1 has 1 worker and no GPU"), ([(3, 2)], "3 workers")])
def test_auto_takes_cpus_where_a_gpu_is_missing_and_says_so(counts, said):
    for share in (False, True):
        chosen, note = gpus.chosen_for_all("auto", cluster_of(*counts, share_gpus=share))
        assert chosen == "cpu" and said in note and note.endswith(".")


@pytest.mark.parametrize(
    "device, counts, share, said",
    [
        ("cuda", [(1, 1), (2, 0)], True, "device-not-found m1 2"),
        ("cuda", [(1, 1), (3, 2)], False, "infeasible m1 3 2 share_gpus"),
        ("cuda:1", [(1, 1)], False, "unsupported-combination gpus"),
        ("tpu", [(1, 1)], False, "unsupported-combination"),
    ],
)
def test_refusals_are_one_sentence(device, counts, share, said):
    with refused(said) as caught:
        gpus.chosen_for_all(device, cluster_of(*counts, share_gpus=share))
    assert "\n" not in str(caught.value)


def test_gpus_are_shared_only_if_asked_for():
    cluster = cluster_of((3, 2), (1, 1), share_gpus=True)
    assert gpus.chosen_for_all("cuda", cluster) == ("cuda", None) and not gpus.own_gpus(cluster, lay_out(cluster, 1))
    others = cluster_of((2, 2), (0, 0), (1, 3))
    assert gpus.own_gpus(others, lay_out(others, 1))


def test_workers_count_where_a_plan_puts_them():
    cluster = cluster_of((1, 0), (1, 2))
    stores = {"store-m0": "m0", "store-m1": "m1"}
    planned = lay_out(cluster, 2, {"worker-0": "m1", "worker-1": "m1", **stores})
    assert gpus.chosen_for_all("auto", cluster, planned) == ("cuda", None) and gpus.own_gpus(cluster, planned)
    assert [task.gpu for task in planned.of_kind("worker")] == [0, 1]
    assert gpus.chosen_for_all("auto", cluster)[0] == "cpu"


@pytest.mark.parametrize(
    "launcher, expected",
    [("environment", [0, 1, 0, None, 0]), ("ray", [0, 1, 0, None, 0]), ("local", [0, 1, 0, None, 2])],
)
def test_every_worker_knows_its_gpu(launcher, expected):
    """By number on its host: machines that are one host have different ones."""
    layout = lay_out(cluster_of((3, 2), (1, 0), (1, 1), launcher=launcher), 2)
    assert [task.gpu for task in layout.of_kind("worker")] == expected
    assert all(task.gpu is None for task in layout.tasks if task.kind != "worker")


@pytest.mark.parametrize(
    "counts, device, shares",
    [
        ([(4, 4)], "auto", 1),
        ([(4, 1)], "cuda", 1),
        ([(4, 1)], "auto", 4),
        ([(4, 4)], "cpu", 4),
        ([(4, 0)], "auto", 4),
        ([(4, 4), (2, 2)], "cuda", 4),
    ],
)
def test_a_graph_that_workers_have_on_their_gpus_is_not_cut_for_each(monkeypatch, tmp_path, counts, device, shares):
    job, cluster, folder = (
        make_job({"graph": "g", "device": device}),
        cluster_of(*counts),
        SimpleNamespace(path=tmp_path),
    )
    for is_stored in (True, False):
        seen = []
        monkeypatch.setattr(run, "cut", lambda graph, how, path, progress: seen.append((how.parts, how.trainers)))  # noqa: B023
        monkeypatch.setattr(run, "uncut", lambda graph, path: seen.append("not cut"))  # noqa: B023
        graph = SimpleNamespace(is_as_stored=lambda: is_stored)  # noqa: B023
        run._cut(graph, job, cluster, folder, None)
        assert seen == ["not cut" if is_stored and (len(counts), shares) == (1, 1) else (len(counts), shares)]


def setup_with(gpu, launcher="local"):
    """A worker's setup."""
    template = template_for(1)
    task = template.layout.of_kind("worker")[0].model_copy(update={"gpu": gpu})
    cluster = template.cluster.model_copy(update={"launcher": launcher})
    return template.model_copy(update={"task": task, "cluster": cluster})


@pytest.mark.parametrize(
    "given, gpu, launcher, seen",
    [
        (None, 1, "local", "1"),
        ("4, 7", 1, "local", "7"),
        ("GPU-ab,GPU-cd", 0, "environment", "GPU-ab"),
        ("3", 1, "ray", "3"),
    ],
)
def test_a_process_sees_its_own_gpu_alone(monkeypatch, given, gpu, launcher, seen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # Set first, so that whatever the claim leaves behind is put back.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given or "")
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    gpus.claim_gpu(setup_with(gpu, launcher))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_a_gpu_that_is_not_there(monkeypatch):
    """As many are visible as the system says; one beyond them hides all."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(os.environ["CUDA_VISIBLE_DEVICES"]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with refused("device-not-found worker-0 1"):
        gpus.claim_gpu(setup_with(1))


@pytest.mark.parametrize(
    "fields, served, learnable, said",
    [
        ({"sample_on": "hybrid"}, False, False, "unsupported-combination hybrid"),
        ({"placement": {"features": "pinned"}}, False, False, "unsupported-combination pinned"),
        ({"placement": {"cache_rows": 5, "cache_by": "degree"}}, False, False, "unsupported-combination cache_by"),
        ({"placement": {"cache_rows": 5, "features": "device"}}, False, False, "unsupported-combination cache_rows"),
        ({"placement": {"cache_rows": 5, "features": "pinned"}}, False, False, "unsupported-combination pinned"),
        ({"compute_type": "float16"}, True, False, "unsupported-combination bfloat16"),
        ({"compute_type": "float16"}, False, True, "unsupported-combination bfloat16"),
    ],
)
def test_jobs_that_want_the_graph_on_the_gpu(fields, served, learnable, said):
    with refused(said):
        check_for_gpus(make_job({"graph": "g", **fields}), served, learnable, far=True, cut=True)


@pytest.mark.parametrize(
    "fields", [{}, {"placement": {"topology": "host"}}, {"compute_type": "float16"}, {"placement": {"cache_rows": 5}}]
)
def test_jobs_that_do_not(fields):
    check_for_gpus(make_job({"graph": "g", **fields}), "compute_type" not in fields, False, far=True, cut=True)


@pytest.mark.parametrize("rows", [None, 5])
def test_pinned_memory_is_for_one_machine(rows):
    asked = {"features": "pinned", "topology": "pinned", "cache_rows": rows}
    check_for_gpus(make_job({"graph": "g", "placement": asked}), False, False, far=False, cut=True)
