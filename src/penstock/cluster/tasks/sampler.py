"""The sampler: draws whole batches for a worker, asking the owners of the lists.

It answers from its start: preparing a sampler from the whole graph may take minutes, and workers must see that it
lives.
"""

from typing import Any

from penstock.cluster.layout import Setup
from penstock.cluster.member import Member
from penstock.cluster.worker.batch_source import SAMPLER, job_sampler
from penstock.cluster.worker.cut_graph import Parts
from penstock.sampling.parts import serve_batches
from penstock.train.inputs import with_edge_fields
from penstock.train.job import stored_job

_THREADS = 2


def run_sampler(setup: Setup) -> int:
    """Serve until the run is over."""
    with Member(setup, _THREADS) as member:
        samplers: dict[str, Any] = {SAMPLER: None}
        serve_batches(member.endpoint, samplers)
        member.announce()
        member.await_tasks("store")
        parts, job = Parts(member), stored_job(setup.job, "The run's job")
        samplers[SAMPLER] = job_sampler(parts, with_edge_fields(job, parts.edge_fields()))
        member.stopped.wait()
    return 0
