"""From a job to a session that is ready: its graph placed, its execution chosen, its model tried on a few seeds."""

import torch

from penstock.graph.folder import Graph
from penstock.plan.residence import NoRoomError
from penstock.progress import SILENT, Progress
from penstock.trace.libraries import library_memory
from penstock.train.assembly import session_of, try_out
from penstock.train.auto_values import decide_gather_threads, decide_groups, decide_sample_threads
from penstock.train.dataset.labels import LearnedLabels
from penstock.train.execution_modes import choose_execution, needs_placement
from penstock.train.job import Job
from penstock.train.memory.remedies import refusal
from penstock.train.run_context import chosen_device, device_memory_of
from penstock.train.session import Session
from penstock.train.user_functions import NOTHING_GIVEN, GivenFunctions


def make_session(
    job: Job,
    graph: Graph | None = None,
    module: torch.nn.Module | None = None,
    taught: LearnedLabels | None = None,
    progress: Progress = SILENT,
    given: GivenFunctions = NOTHING_GIVEN,
) -> Session:
    """Build everything a job names. `graph` and `module` stand for the job's own where given.

    `taught` are the labels of a trained run: the session is then for using its model, and the graph may lack labels.
    `given` are functions beside those that the job names.
    """
    # A model can be used on any machine, whatever device it was trained on.
    device = chosen_device(job.device if taught is None or job.device == "cpu" else "auto")
    session = session_of(job, device, graph, module, taught, given)
    if taught is None:
        decide_groups(session)
        decide_gather_threads(session)
        if session.inputs.on_gpu:
            decide_sample_threads(session)
            session.inputs.put_tables_on_device(device_memory_of(device)[0])
    if session.inputs.on_gpu and needs_placement(job.sampler):
        # Triton is imported where there is a device for it.
        from penstock.train.device.placement import place

        try:
            session.placed = place(session, taught is None, progress)
        except NoRoomError as error:
            if error.would_fit:
                raise
            # It does not fit even with the graph on the host: look for a job that would, as `penstock memory` does.
            raise refusal(job, graph, library_memory().context + device_memory_of(device)[0], module) from error
    session.execution = choose_execution(session, session.placed)
    try_out(session, with_loss=taught is None)
    return session
