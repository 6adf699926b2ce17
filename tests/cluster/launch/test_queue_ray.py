"""Jobs of a queue on a Ray cluster of this host."""

import logging
import time
import warnings

import pytest

from penstock.service.database import FINAL
from penstock.service.policies import DeviceRoom, WaitingJob
from penstock.service.ray_jobs import HandOver
from queue_parts import make_parts
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained

pytest.importorskip("ray")
JOB = {"fanouts": [4, 3], "hidden": 16, "batch_size": 16, "epochs": 3, "checkpoint_minutes": 0, "threads": 1}
PATIENCE_S = 240


@pytest.fixture(scope="module")
def jobs():
    from ray.cluster_utils import Cluster

    from penstock.service.ray_jobs import RayJobs

    logging.getLogger("ray").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Ray's own, about files it has not closed.
        warnings.simplefilter("ignore")
        node = {"num_cpus": 2, "node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        found = RayJobs(cluster.address)
        yield found
        found.close()
        cluster.shutdown()


def test_jobs_are_handed_over_by_priority_and_no_more_than_some():
    rooms = [DeviceRoom(name="ray-cpu", kind="cpu", host_bytes=1, cores=1)]
    waiting = [WaitingJob(id=str(at), kind="cpu", submitted=at, priority=at == 90) for at in range(100)]
    starts = HandOver().choose(waiting, [], rooms)
    assert [start.id for start in starts[:3]] == ["90", "0", "1"]
    assert len(starts) == 64


@pytest.mark.slow
@pytest.mark.long
def test_a_job_trains_on_the_cluster_and_another_is_cancelled_there(jobs, tmp_path):
    graph = community_graph(120).save(tmp_path / "graph")
    alone = trained(graph, tmp_path / "alone", **JOB)
    (room,) = jobs.rooms()
    assert (room.kind, room.device.cores) == ("cpu", 2.0)
    parts = make_parts(tmp_path / "queue", allowed=[tmp_path.resolve()], rooms=[room], trainers=jobs, ray=True)
    submit = parts.operations.submit
    (job,) = submit({"graph": str(graph.path), **JOB}, {}, 0)
    (long,) = submit({"graph": str(graph.path), **JOB, "epochs": 100_000, "evaluate_every": 0}, {}, 0)
    for record in (job, long):
        parts.database.change(record.id, state="waiting", host_bytes=600 << 20)
    end = time.monotonic() + PATIENCE_S
    while any(parts.database.job(record.id).state not in FINAL for record in (job, long)):
        assert time.monotonic() < end, [each.shown() for each in parts.database.jobs()]
        parts.scheduler.tick()
        record = parts.database.job(long.id)
        if record.state == "running" and not record.cancelling:
            parts.operations.cancel(long.id)
    found = parts.database.job(job.id)
    assert found.state == "ended", found.reason
    assert found.device == "ray-cpu"
    assert parts.database.job(long.id).state == "cancelled"
    assert_same_state(newest_checkpoint(alone.path), newest_checkpoint(found.run))
    assert "training" in parts.operations.log(job.id, 0)["text"]
    parts.close()
