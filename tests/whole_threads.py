"""Workers that train on one whole graph as threads of a test: what a cluster gives them, in memory."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from penstock.pipeline.schedule import START, Schedule
from penstock.train.build import make_session
from penstock.train.execution_modes import choose_execution
from penstock.train.job import job_of
from penstock.train.layerwise.host import Reach


class Hub:
    """What the workers of one test share. Waiting for longer than `patience` seconds fails."""

    def __init__(self, world, patience=60.0):
        self.world, self.patience = world, patience
        self.changed = threading.Condition()
        self.lists, self.rows, self.sums, self.log = {}, {}, {}, []

    def until(self, is_there):
        """Wait with the lock held."""
        assert self.changed.wait_for(is_there, self.patience), "a worker did not come"

    def give(self, rank, number, values):
        """A worker's array of the n-th sum."""
        with self.changed:
            self.sums.setdefault(number, {})[rank] = values
            self.changed.notify_all()

    def summed(self, number):
        """The sum of all workers' arrays of the n-th sum, in the order of ranks."""
        with self.changed:
            self.until(lambda: len(self.sums[number]) == self.world)
            parts = self.sums[number]
        total = parts[0].clone()
        for each in range(1, self.world):
            total += parts[each]
        return total


class ThreadWorkers:
    """One worker of a hub over a graph whose vertices are cut into equal ranges, but for a worker that has none."""

    beside, bandwidth = 1, 1e9

    def __init__(self, session, hub, rank, idle=()):
        self._hub, self.rank, self.world = hub, rank, hub.world
        self.cut = ThreadCut(session, rank, [each for each in range(hub.world) if each not in idle])
        self.lists, self.mail, self._number = self, self, 0
        self._position, self.received = None, 0
        self._begun = []

    @property
    def add(self):
        return None if self.world == 1 else self._add

    def begin_round(self):
        """There is only one."""

    def exchange(self, name, lists):
        hub = self._hub
        with hub.changed:
            hub.lists[name, self.rank] = [[np.array(each) for each in given] for given in lists]
            hub.changed.notify_all()
            hub.until(lambda: all((name, rank) in hub.lists for rank in range(hub.world)))
            return [hub.lists[name, rank][self.rank] for rank in range(hub.world)]

    def begin(self, position):
        self._position = position

    def post(self, rank, tag, rows):
        with self._hub.changed:
            self._hub.rows[self._position, self.rank, rank, tag] = [np.array(each) for each in rows]
            self._hub.log.append((self.rank, tag))
            self._hub.changed.notify_all()

    def take(self, rank, tag):
        with self._hub.changed:
            found = self._hub.rows.pop((self._position, rank, self.rank, tag), None)
        self.received += sum(each.nbytes for each in found or ())
        return found

    def wait(self):
        with self._hub.changed:
            self._hub.changed.wait(0.01)

    def end(self):
        """Everything is there when it is posted."""

    def start_sum(self, parameters):
        self._begun.append((parameters, self._give(_flat(parameters))))
        for each in parameters:
            each.grad = None

    def reduce_and_step(self, session, loss):
        begun, self._begun = self._begun, []
        known = {id(each) for parameters, _ in begun for each in parameters}
        left = [each for each in session.learned.parameters() if each.requires_grad and id(each) not in known]
        total = self._next(torch.cat([_flat(left), torch.tensor([loss], dtype=torch.float64)]))
        for parameters, values in [(left, total[:-1]), *((some, self._hub.summed(number)) for some, number in begun)]:
            for each, part in zip(parameters, torch.split(values, [p.numel() for p in parameters]), strict=True):
                each.grad = part.view_as(each).to(each.dtype, copy=True)
        session.optimiser.step()
        return float(total[-1])

    def _add(self, numbers):
        numbers.copy_(self._next(numbers.clone()))

    def _next(self, values):
        return self._hub.summed(self._give(values))

    def _give(self, values):
        self._number += 1
        self._hub.give(self.rank, self._number, values)
        return self._number


def _flat(parameters):
    given = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(each.reshape(-1) for each in given)])


class ThreadCut:
    """Vertices keep their numbers; the workers of `ranks` own equal ranges of them."""

    def __init__(self, session, rank, ranks):
        self._graph, self._rank, self._ranks = session.task.messages, rank, ranks
        self.types, self.message_edges = list(self._graph.nodes), self._graph.num_edges
        self.relations = kinds = list(self._graph.edges)
        self.sample_of = Reach(self._graph, [kinds], session.job.weight, edges=bool(session.inputs.edges)).batches(
            [kinds]
        )

    def own(self, node_type):
        every = np.arange(self._graph.nodes[node_type].count)
        return every[self.ranks(node_type, every) == self._rank]

    def ranks(self, node_type, vertices):
        count = self._graph.nodes[node_type].count
        return np.array(self._ranks)[np.asarray(vertices) * len(self._ranks) // max(1, count)]

    def numbers(self, node_type, original):
        return np.asarray(original)

    def names(self, node_type, vertices):
        return np.asarray(vertices)

    def sample(self, number, rows):
        return self.sample_of(rows)


class ThreadGroup:
    """A worker group that can only train on the whole graph."""

    def __init__(self, hub, rank, idle):
        self._hub, self.rank, self.world, self._idle = hub, rank, hub.world, idle

    def whole(self, session):
        self.workers = ThreadWorkers(session, self._hub, self.rank, self._idle)
        return self.workers


def train_in_threads(graph, world, epochs=3, idle=(), prepare=id, **fields):
    """Every worker's losses by step, weights at the end, facts and bytes received, and the hub.

    `prepare` may change a worker's session before it trains.
    """
    hub = Hub(world)

    def work(rank):
        session = make_session(job_of({"graph": "g", "run": "r", "epochs": epochs, **fields}), graph)
        prepare(session)
        group = ThreadGroup(hub, rank, idle)
        session.execution = choose_execution(session, None, group)
        schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, epochs)
        with session.execution.steps(schedule, START, lambda _: 1, lambda *_: None) as steps:
            losses = [step.loss for each in steps for step in each]
        return losses, session.learned.state_dict(), session.execution.facts(), group.workers.received

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(work, range(world))), hub
