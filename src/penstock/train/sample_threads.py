"""The threads of `sample_threads: auto`, where a GPU computes what the host draws."""

from penstock.graph.blocks import default_threads
from penstock.train.batch_source import layers_of
from penstock.train.decided_by import RULE
from penstock.train.execution.support import DEVICE_SAMPLING, demands_of, reasons_against
from penstock.train.execution_modes import needs_placement
from penstock.train.session import Session

_MOST = 16
"""Each thread has a batch under way, which takes memory."""


def decide_sample_threads(session: Session) -> None:
    """Decide the threads of a session on a GPU; it stays open, which is one thread, where the GPU draws by itself.

    A GPU waits for batches that one thread draws, while the host's other cores have nothing to do. Batches are the same
    with any number of threads, so that nothing but time and the host's memory depends on it.
    """
    job = session.job
    if job.sample_threads or not needs_placement(job.sampler) or not layers_of(job):
        return
    if job.sample_on == "host" or reasons_against(DEVICE_SAMPLING, demands_of(session)):
        # One core launches steps.
        threads = min(_MOST, max(1, (job.threads or default_threads()) - 1))
        session.job = job.model_copy(update={"sample_threads": threads})
        session.decided["sample_threads"] = threads
        session.decided_by["sample_threads"] = RULE
