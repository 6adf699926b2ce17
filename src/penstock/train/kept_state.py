"""Steps that are only tried: afterwards a session is as it was before."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

from penstock.train.run_context import generators_kept
from penstock.train.session import Session


@contextmanager
def state_kept(session: Session) -> Iterator[None]:
    """Weights, running figures, the optimiser and torch's generators are afterwards as before; gradients are gone."""
    weights = {name: values.clone() for name, values in session.learned.state_dict().items()}
    optimiser = deepcopy(session.optimiser.state_dict())
    try:
        with generators_kept(session.inputs.device):
            yield
    finally:
        session.learned.load_state_dict(weights)
        session.optimiser.load_state_dict(optimiser)
        session.optimiser.zero_grad(set_to_none=True)
