"""A job measured on the real system."""

import tempfile

import numpy as np
import pytest

from cluster_runs import JOB, cluster_file, in_parts, machines
from penstock.cluster.cluster_file import read_cluster
from penstock.cluster.profiling import profile_job
from penstock.progress import SILENT
from penstock.train.job import job_of
from training_graphs import community_graph


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    graph = community_graph().save(folder / "graph")
    scratch = folder / "scratch"
    scratch.mkdir()
    parts = in_parts(graph, 2, folder)
    cluster = read_cluster(cluster_file(folder, machines=machines(1, 1), partition=parts, reduce="servers"))
    job = job_of({**JOB, "graph": str(graph.path)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(scratch))
        profile = profile_job(job, cluster, 6, SILENT)
    assert list(scratch.iterdir()) == []
    return graph, job, profile


def test_every_kind_of_task_and_flow_is_measured(measured) -> None:
    graph, job, profile = measured
    assert (profile.parts, profile.workers, profile.iterations) == (2, 2, 6)
    assert {each.name for each in profile.operators} == {"serve", "sample", "gather", "step", "sum"}
    assert {each.device for each in profile.operators} == {"cpu"}
    for cost in profile.operators:
        assert 0 < cost.seconds.mean < 10, cost.name
    assert {each.process for each in profile.memory} == {"store", "sampler", "worker", "server"}
    # A forked task shares most of its memory with the process that it was forked from.
    assert all(each.gb > 0 for each in profile.memory)
    assert profile.batches == -(-len(graph.nodes["node"].splits["train"]) // job.batch_size)
    assert min(profile.transfer("blocks").bytes[0]) > 0


def test_workers_read_all_parts_over_the_wire(measured) -> None:
    """Also what would be here in a run: a plan may put a worker elsewhere."""
    graph, _, profile = measured
    row = graph.x.shape[1] * 4
    features = np.array(profile.transfer("features").bytes)
    assert (features > row).all()
    # No more rows than there are, and headers.
    assert features.sum(0).max() < graph.num_nodes * row * 1.2
    assert (np.array(profile.transfer("lists").bytes) > 0).all()


def test_it_belongs_to_the_job_that_was_measured(measured) -> None:
    _, job, profile = measured
    profile.check_job(job.model_dump(mode="json"), "profile.json")
    assert profile.job["fanouts"] == [4, 3]


def test_smaller_batches_are_measured_too(measured) -> None:
    """So that a profile of another size knows what does not grow with a batch."""
    _, job, profile = measured
    assert profile.smaller_batch == job.batch_size // 4
    for name in {each.name for each in profile.operators}:
        sizes = [each.sizes["batch_size"] for each in profile.measurements(name, "cpu")]
        assert sizes == [job.batch_size, job.batch_size // 4]


def test_scaled_bytes_are_those_that_a_larger_cluster_reads(measured) -> None:
    """Measured with two parts and two workers, predicted for two parts and four workers."""
    from penstock.cluster.planning import fit_profile

    _, job, profile = measured
    cluster = read_cluster("2x2")
    scaled = fit_profile(profile, job, cluster, SILENT)
    assert (scaled.parts, scaled.workers) == (2, 4)
    each, before = (np.array(found.transfer("features").bytes).sum(axis=0).mean() for found in (scaled, profile))
    # Half of the seeds read less than all, and more than half of it, as neighbours are shared.
    assert 0.5 * before < each < before


@pytest.mark.long
def test_workers_whose_sampler_knows_what_is_near_are_measured_there(tmp_path) -> None:
    """From the first measured iteration on they draw by an explanation, and read their own part without a message."""
    from penstock.cluster.planning import plan_run
    from penstock.cost.profile import write_profile
    from penstock.plan.placement import Budget
    from penstock.plan.planner import PlanChoices

    graph = community_graph().save(tmp_path / "graph")
    spread = {"machines": machines(1, 1, nic_gbps=1.0), "partition": in_parts(graph, 2, tmp_path)}
    cluster = read_cluster(cluster_file(tmp_path, **spread))
    fields = {**JOB, "graph": str(graph.path), "explain_steps": 3, "explain_rows": 20, "feature_share": 0.5}
    job = job_of({**fields, "sampler": "explained"})
    profile = profile_job(job, cluster, 6, SILENT)
    profile.check_job(job.model_dump(mode="json"), "profile.json")
    plain = profile_job(job_of({**JOB, "graph": str(graph.path)}), cluster, 6, SILENT)
    ours, theirs = (np.array(each.transfer("features").bytes) for each in (profile, plain))
    assert (np.diag(ours) == 0).all() and (np.diag(theirs) > 0).all()
    # Half of the columns of fewer rows.
    assert 0 < ours.sum() < 0.6 * (theirs.sum() - np.trace(theirs))
    write_profile(profile, tmp_path / "profile.json")
    plan = plan_run(job, cluster, tmp_path / "profile.json", PlanChoices(None, "fair", Budget(50)), SILENT)
    assert plan.machine_of()["worker-0"] == "m0" and plan.machine_of()["worker-1"] == "m1"
