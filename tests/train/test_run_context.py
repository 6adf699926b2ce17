"""Runs in one process do not disturb each other, nor what the process had before them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from penstock.memory import PeakCounter
from penstock.progress import Progress
from penstock.train import run_context as module
from penstock.train.job import make_job
from penstock.train.run_context import device_peak, generators_kept, run_context, seeded
from refusals import refused
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained, typed_graph

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


class Noisy(nn.Module):
    """A module of the user's that draws from torch's generator, when it is made and in every step."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.hidden, self.last, self.drop = nn.Linear(inputs, 8), nn.Linear(8, outputs), nn.Dropout(0.5)

    def forward(self, x, edge_index):
        messages = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return self.last(self.drop(torch.relu(self.hidden(x + messages))))


def cases():
    """By name, a graph and a job; threads are the same, as MKL has one number for all."""
    own = f"{__file__}:Noisy"  # built by the run itself
    return {
        "own module": (community_graph(), {"module": own, "seed": 3, "threads": 2}),
        "another": (community_graph(200, seed=5), {"module": own, "seed": 4, "threads": 2}),
        "zoo": (typed_graph(), {"model": "rgcn", "embedding": 8, "dropout": 0.3, "threads": 2}),
    }


def test_runs_in_threads_give_what_each_gives_alone(tmp_path):
    jobs = cases()
    alone = {name: trained(graph, tmp_path / name, **job) for name, (graph, job) in jobs.items()}
    before = torch.get_rng_state(), torch.get_num_threads()
    with ThreadPoolExecutor(len(jobs)) as pool:
        started = {
            name: pool.submit(trained, graph, tmp_path / f"{name} at once", **job)
            for name, (graph, job) in jobs.items()
        }
        at_once = {name: run.result() for name, run in started.items()}
    for name, run in at_once.items():
        assert_same_state(newest_checkpoint(alone[name].path), newest_checkpoint(run.path))
        assert (alone[name].val, alone[name].test) == (run.val, run.test)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]


def test_a_run_inside_another_s_progress_leaves_it_as_it_was(tmp_path):
    """Two runs taking turns in one thread: the second starts and ends between two steps of the first."""
    graph, job = cases()["own module"]
    alone = trained(graph, tmp_path / "alone", **job)
    inner = []

    class Interleaving(Progress):
        def advance(self, amount=1):
            if not inner:
                inner.append(trained(community_graph(100), tmp_path / "inner", threads=2, epochs=1))

    outer = trained(graph, tmp_path / "outer", progress=Interleaving(), **job)
    assert inner
    assert_same_state(newest_checkpoint(alone.path), newest_checkpoint(outer.path))


def in_thread(call):
    """What a call gives in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_overlapping_runs_give_back_what_the_process_had(monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    threads, coming, state = torch.get_num_threads(), in_thread(torch.get_num_threads), torch.get_rng_state()
    entered, leave = threading.Event(), threading.Event()

    def second():
        with run_context(make_job({"graph": "g", "threads": 3, "device": "cpu"})):
            entered.set()
            leave.wait(20)
            torch.rand(5)
            return torch.get_num_threads()

    with ThreadPoolExecutor(1) as pool:
        with run_context(make_job({"graph": "g", "threads": 1, "device": "cpu"})):
            other = pool.submit(second)
            assert entered.wait(20)
            assert torch.get_num_threads() == 1
            torch.manual_seed(9)
        leave.set()
        assert other.result() == 3
    assert (torch.get_num_threads(), in_thread(torch.get_num_threads)) == (threads, coming)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_the_process_has_once_is_refused_where_two_runs_want_it_otherwise(monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    two, three = (make_job({"graph": "g", "threads": threads, "device": "cpu"}) for threads in (2, 3))
    with run_context(two):
        with refused("in-use 2"), run_context(three):
            pass
        with run_context(two):
            pass
    with run_context(three):
        pass
    monkeypatch.setattr(module, "chosen_device", lambda name: GPU)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: "state")
    given_back = []
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *given: given_back.append(given))
    plain, rounded = (make_job({"graph": "g", "threads": 2, "compute_type": kind}) for kind in ("float32", "tf32"))
    before = torch.backends.cuda.matmul.allow_tf32
    with run_context(rounded):
        assert torch.backends.cuda.matmul.allow_tf32
        with refused("in-use tf32 float32"), run_context(plain):
            pass
    assert torch.backends.cuda.matmul.allow_tf32 == before
    assert given_back == [("state", GPU)]


def test_one_run_at_a_time_draws(monkeypatch):
    def drawn(seed):
        found = []
        for _ in range(200):
            with seeded(seed, CPU):
                found.append(torch.rand(3) + torch.rand(3))
        return found

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(drawn, (1, 2))
    for found in (first, second):
        assert all(torch.equal(each, found[0]) for each in found)
    state = torch.get_rng_state()
    with generators_kept():
        torch.rand(7)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_peak_is_kept_when_another_measurement_starts(monkeypatch):
    level = {"now": 5.0, "most": 5.0}
    counter = PeakCounter(lambda: level["most"], lambda: level.update(most=level["now"]))

    def use(amount):
        level.update(now=amount, most=max(level["most"], amount))

    first = counter.measure()
    use(9.0)
    use(2.0)
    second = counter.measure()
    use(3.0)
    assert (first.read(), second.read()) == (9.0, 3.0)
    use(11.0)
    assert (first.read(), second.read()) == (11.0, 11.0)
    resets = []
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    assert device_peak(GPU).read() == 7
    assert resets == [GPU]
