"""Steps on a device for which the host stands, as tests take them: kernels are interpreted there."""

import torch

from penstock.pipeline.schedule import START, Schedule
from penstock.train.build import make_session
from penstock.train.execution_modes import choose_execution
from penstock.train.job import job_of


def placed_session(graph, job):
    """A session whose graph is placed as if the host were a device; its optimiser can leave a step out."""
    from penstock.train.device.placement import place

    session = make_session(job_of(job), graph)
    session.optimiser = torch.optim.Adam(session.learned.parameters(), lr=0.01, fused=True)
    session.execution = choose_execution(session, place(session, True))
    return session


def schedule_of(session):
    """All batches of a session's job."""
    return Schedule(session.task.items, session.task.batch_size, session.job.seed, session.job.epochs)


def bursts(schedule, pause):
    """Say at each position how many steps are taken until the next pause: `pause`, or what is left of the epoch."""
    batches = schedule.batches
    return lambda position: min(pause, batches - position.batch)


def weights(session):
    """A copy of what is learned so far."""
    return {name: values.clone() for name, values in session.learned.state_dict().items()}


def learned(session, pause=3, start=START, steps=None):
    """Train until `steps` steps are done, or all; returns the steps done and the weights."""
    schedule, done = schedule_of(session), []
    with session.execution.steps(schedule, start, bursts(schedule, pause), lambda *_: None) as all_steps:
        for some in all_steps:
            done += some
            if steps is not None and len(done) >= steps:
                break
    return done, weights(session)
