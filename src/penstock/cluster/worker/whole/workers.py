"""The workers of a cluster run that train on one whole graph."""

from collections.abc import Callable, Sequence

from torch.nn import Parameter

from penstock.cluster.member import Member
from penstock.cluster.worker.batch_norm import summing
from penstock.cluster.worker.collective_group import CollectiveGroup
from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.whole.cut_lists import PartedCutLists
from penstock.cluster.worker.whole.list_exchange import ListExchange
from penstock.cluster.worker.whole.row_mail import RowInbox, WireRowMail
from penstock.nn.norm import Sum
from penstock.train.execution.worker_group import RegroupError
from penstock.train.session import Session

_GBPS = 10.0
"""Of a machine's network where the cluster file does not say."""


class ClusterWholeWorkers:
    """See `train.whole.shared.interfaces.WholeWorkers`."""

    def __init__(
        self,
        session: Session,
        parts: Parts,
        inbox: RowInbox,
        generation: Callable[[], int],
        collective: Callable[[], CollectiveGroup | None],
        start_sum: Callable[[Sequence[Parameter]], None],
        step: Callable[[Session, float], float],
    ) -> None:
        """`generation` is the number of the round, `collective` the group that sums in it."""
        self._member, self._inbox, self._generation, self._collective = parts.member, inbox, generation, collective
        setup = parts.member.setup
        self.rank, self.world = setup.task.rank, setup.layout.world
        self.cut = PartedCutLists(session, parts)
        self.lists = ListExchange(parts.member, self._check)
        self.mail = WireRowMail(parts.member, inbox, generation, self._check)
        self.beside = sum(task.machine == setup.task.machine for task in setup.layout.of_kind("worker"))
        machine = next(each for each in setup.cluster.machines if each.name == setup.task.machine)
        self.bandwidth = (machine.nic_gbps or _GBPS) * 1e9 / 8 / self.beside
        self.start_sum, self.reduce_and_step = start_sum, step

    @property
    def add(self) -> Sum | None:
        """The sums of the round."""
        group = self._collective()
        return None if group is None else summing(group)

    def begin_round(self) -> None:
        """All workers have met."""
        self._inbox.begin_round(self._generation())

    def _check(self) -> None:
        member: Member = self._member
        generation = self._generation()
        over = member.round >= generation or member.stopped.is_set()
        if over or not member.ask("holds", generation=generation).body["holds"]:
            raise RegroupError("a worker was lost")
