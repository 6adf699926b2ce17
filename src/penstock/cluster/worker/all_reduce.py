"""Gradients summed among the workers, and the same step made by each."""

from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor
from torch.nn import Parameter

from penstock.cluster.layout import chosen_reduction
from penstock.cluster.member import Member
from penstock.cluster.worker.clip import clip_with_owners
from penstock.cluster.worker.collective_group import CollectiveGroup, StagedSums
from penstock.cluster.worker.flat import FlatGradients, are_finite, learned_parameters
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
        reduction = REDUCTIONS[chosen_reduction(member.setup.cluster, member.setup.layout)]
        self.group = reduction.make_group(member, generation, collective, device)
        self._parameters = learned_parameters(session)
        self._known: dict[tuple[int, ...], FlatGradients] = {}
        self._begun: list[tuple[FlatGradients, Callable[[], None]]] = []
        """Gradients of the step under way that are being summed."""
        self._may_overflow = device.type == "cuda" and session.job.compute_type == "float16"

    def start_sum(self, parameters: Sequence[Parameter]) -> None:
        """Begin to sum the gradients of some parameters, which have none afterwards; `step` ends it.

        Only hosts do: GPUs would compute nothing meanwhile, and leave all gradients to the step.
        """
        if self.group is None or self.group.device.type != "cpu":
            return
        flat = self._flat(parameters, len(parameters))
        flat.take_gradients()
        flat.set_more([float(each) for each in flat.present])
        with within_kind(GRADIENTS):
            self._begun.append((flat, cast(StagedSums, self.group).start_sum(flat.numbers)))
        for parameter in parameters:
            parameter.grad = None

    def step(self, session: Session, loss: float, asked: bool) -> tuple[float, bool]:
        """One optimiser step with the sum of all workers' gradients; the batch's loss, and whether to stop."""
        total, stopping = (loss, asked) if self.group is None else self._summed(self.group, loss, asked)
        if self._may_overflow and not are_finite(self._parameters):
            # On some worker: all leave the step out, as one that trains alone does.
            return total, stopping
        if session.job.clip:
            clip_with_owners(session)
        session.optimiser.step()
        return total, stopping

    def _summed(self, group: CollectiveGroup, loss: float, asked: bool) -> tuple[float, bool]:
        """Put the sum of all workers' gradients into the parameters; the batch's loss, and whether to stop."""
        begun, self._begun = self._begun, []
        known = {id(each) for flat, _ in begun for each in flat.parameters}
        left = [each for each in self._parameters if id(each) not in known]
        flat = self._flat(left, _MORE + len(left))
        flat.take_gradients()
        flat.set_more([loss, float(asked), *map(float, flat.present)])
        with within_kind(GRADIENTS):
            group.sum(flat.numbers)
            for _, finish in begun:
                finish()
        total, stopping, *present = flat.more.tolist()
        flat.give_gradients([count > 0 for count in present])
        for part, _ in begun:
            part.give_gradients([count > 0 for count in part.more.tolist()])
        return total, stopping > 0

    def _flat(self, parameters: Sequence[Parameter], more: int) -> FlatGradients:
        key = tuple(map(id, parameters))
        if key not in self._known:
            on_device = self.group is None or self.group.device.type == "cuda"
            self._known[key] = FlatGradients(parameters, more, on_device)
        return self._known[key]

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
