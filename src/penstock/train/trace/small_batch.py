"""Batches in a trace: brought to the device by the session's carrier, and the small one that a model is tried on."""

from typing import Any

import torch

from penstock.pipeline.loader import Loaded
from penstock.pipeline.schedule import Planned
from penstock.traced import memory_for
from penstock.train.execution.loaded import loss_of
from penstock.train.session import Session
from penstock.train.trace.categories import BATCHES

_TRIED = 4
"""Seeds of the batch that a model is tried on before it trains."""


def carried(session: Session, loaded: Loaded) -> Loaded:
    """A batch that was sampled, brought to where it is computed."""
    carrier: Any = session.inputs.carrier
    with memory_for(BATCHES):
        carrier.gather(loaded.batch)
        session.task.label(loaded.batch)
        carrier.transfer(loaded.batch)
        carrier.arrive(loaded.batch)
    return loaded


def try_small_batch(session: Session, planned: Planned) -> None:
    """What `assembly.try_out` does on a few seeds, before a run begins."""
    batch = session.task.sample(planned._replace(seeds=planned.seeds[:_TRIED]))
    loaded = carried(session, Loaded(planned, batch))
    with torch.no_grad():
        loss_of(session, loaded, session.inputs.complete(loaded.batch))
