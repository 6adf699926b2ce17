"""Gradients summed among the workers, and the same step made by each."""

from collections.abc import Callable

from torch import Tensor

from penstock.cluster.member import Member
from penstock.cluster.worker.clip import clip_with_owners
from penstock.cluster.worker.collective_group import CollectiveGroup
from penstock.cluster.worker.flat import FlatGradients
from penstock.cluster.worker.reductions import REDUCTIONS
from penstock.cluster.worker.wire_collective import WireCollective
from penstock.coflow_context import GRADIENTS, within_kind
from penstock.train.session import Session

_MORE = 2
"""Behind the gradients: the loss, how many workers were asked to stop; then, by parameter, how many have a gradient."""


class AllReduce:
    """The sums of one round, by what the cluster's `reduction` names."""

    def __init__(self, member: Member, session: Session, generation: int, collective: WireCollective) -> None:
        device = session.inputs.device
        learned = sum(1 for parameter in session.learned.parameters() if parameter.requires_grad)
        self.group = REDUCTIONS[member.setup.cluster.reduction].make_group(member, generation, collective, device)
        self._flat = FlatGradients(session, _MORE + learned, self.group is None or self.group.device.type == "cuda")
        self._may_overflow = device.type == "cuda" and session.job.compute_type == "float16"

    def step(self, session: Session, loss: float, asked: bool) -> tuple[float, bool]:
        """One optimiser step with the sum of all workers' gradients; the batch's loss, and whether to stop."""
        total, stopping = (loss, asked) if self.group is None else self._summed(self.group, loss, asked)
        if self._may_overflow and not self._flat.are_finite():
            # On some worker: all leave the step out, as one that trains alone does.
            return total, stopping
        if session.job.clip:
            clip_with_owners(session)
        session.optimiser.step()
        return total, stopping

    def _summed(self, group: CollectiveGroup, loss: float, asked: bool) -> tuple[float, bool]:
        """Put the sum of all workers' gradients into the parameters; the batch's loss, and whether to stop."""
        flat = self._flat
        flat.take_gradients()
        flat.set_more([loss, float(asked), *map(float, flat.present)])
        with within_kind(GRADIENTS):
            group.sum(flat.numbers)
        total, stopping, *present = flat.more.tolist()
        flat.give_gradients([count > 0 for count in present])
        return total, stopping > 0

    def device_sums(self) -> "AllReduce":
        """Itself: captured steps launch sums and make the step with them."""
        return self

    def launch(self, numbers: Tensor) -> None:
        """Sum numbers in the device's memory, in place, before whatever is launched next."""
        if self.group is not None:
            with within_kind(GRADIENTS):
                self.group.launch_sum(numbers)

    def finish(self, is_done: Callable[[], bool]) -> None:
        """Wait for the sums that were launched."""
        if self.group is not None:
            self.group.finish_sums(is_done)

    def gather_optimiser(self, session: Session) -> None:
        """Do nothing: every worker holds the whole optimiser."""

    def close(self) -> None:
        """Let go of the other workers: those that still wait for this one hear of it."""
        if self.group is not None:
            self.group.close()
