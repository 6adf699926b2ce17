"""Problems that can be solved are posed as meant; others get a sentence."""

import numpy as np
import pytest
from small_clusters import job, posed

from penstock.errors import PenstockError
from penstock.hardware.network import star
from penstock.plan.placement import placement_problem
from penstock.simulate.workload import merge

PAIR = ([100.0, 100.0], [8.0, 8.0], [2.0, 2.0])


def test_stores_are_pinned_and_groups_are_workers_with_their_samplers() -> None:
    problem = posed(job(2, 2, 2), *PAIR)
    assert problem.home[problem.unit_of[problem.workload.tasks_of("store")]].tolist() == [0, 1]
    names = [[problem.workload.task_names[unit] for unit in group] for group in problem.groups]
    assert names == [["worker0", "sampler0.0", "sampler0.1"], ["worker1", "sampler1.0", "sampler1.1"]]
    assert problem.demands[problem.groups[0]].sum(axis=0).tolist() == [5.0, 1.0]


def test_ring_steps_share_their_workers_unit() -> None:
    problem = posed(job(2, 2, 1, servers=0), *PAIR)
    load = problem.workload
    numbers = dict(zip(load.task_names, problem.unit_of.tolist(), strict=True))
    assert numbers["ring0.1"] == numbers["worker0"]
    assert numbers["ring1.0"] == numbers["worker1"] != numbers["worker0"]


def test_each_of_two_jobs_has_stores_on_the_first_machines_and_groups_of_its_own() -> None:
    load = merge({"a": job(2, 1, 1, servers=0), "b": job(2, 1, 1)})
    problem = posed(load, *PAIR)
    assert problem.home[problem.unit_of[load.tasks_of("store")]].tolist() == [0, 1, 0, 1]
    assert len(problem.groups) == 2


def test_tasks_are_pinned_by_name() -> None:
    nics = np.array([1e8, 1e8])
    rooms = {"cores": [8, 8], "gpus": [2, 2]}
    problem = placement_problem(job(2, 1, 1), star(nics, nics), rooms, {"store0": "m1", "worker0": "m0"})
    assert problem.pinned[problem.workload.task_names.index("store0")] == 1
    assert problem.pinned[problem.workload.task_names.index("store1")] == -1
    with pytest.raises(PenstockError, match="No machine is called 'm7'"):
        placement_problem(job(2, 1, 1), star(nics, nics), rooms, {"store0": "m7"})
    with pytest.raises(PenstockError, match="did you mean 'store0'"):
        placement_problem(job(2, 1, 1), star(nics, nics), rooms, {"stor0": "m0"})


@pytest.mark.parametrize(
    ("stores", "workers", "cores", "gpus", "sentence"),
    [
        (2, 5, [20, 20], [2, 2], "5 workers need 5 gpus and the cluster has 4: add 1, or ask for 4 workers"),
        (2, 1, [9, 9], [0, 0], "1 worker needs 1 gpus and the cluster has none: add 1, or ask for a worker without"),
        (2, 4, [6, 6], [2, 2], "4 workers, 4 samplers and 1 server need 13 cores and the cluster has 12: add 1, or"),
        (2, 1, [1, 1], [1, 1], "need 4 cores and the cluster has 2: add 2"),
        (5, 1, [1, 1, 1, 1, 1], [1, 0, 0, 0, 0], "sampler0.0 needs 2 cores and no machine has more than 1 free"),
        (
            3,
            3,
            [3, 3, 4],
            [0, 0, 4],
            "no packing does: 2 of 3 workers fit on the machines beside 3 samplers and 1 server",
        ),
        (2, 4, [3, 10], [4, 0], "The sums fit .*, but no packing"),
        (3, 1, [8, 8], [2, 2], "3 graph stores are to stand on 2 machines"),
        (2, 1, [8, -1], [2, 2], "Machine m1 has -1 cores: give a finite number, 0 or more"),
        (2, 1, [8, float("nan")], [2, 2], "Machine m1 has nan cores"),
        (2, 1, [8, 8, 8], [2, 2], "The cluster gives cores of 3 machines and has 2"),
    ],
)
def test_what_cannot_be_placed_gets_a_sentence(
    stores: int, workers: int, cores: list[float], gpus: list[float], sentence: str
) -> None:
    with pytest.raises(PenstockError, match=sentence):
        posed(job(stores, workers, 1), [100.0] * len(gpus), cores, gpus)


def test_pinned_tasks_must_fit_and_resources_be_known() -> None:
    nics = np.array([1e8])
    with pytest.raises(PenstockError, match="Tasks hold gpus, but the cluster does not say"):
        placement_problem(job(1, 1, 1), star(nics, nics), {"cores": [8]})
    with pytest.raises(PenstockError, match="pinned to m0 need 2 cores and it has 1: add 1"):
        placement_problem(job(1, 1, 1), star(nics, nics), {"cores": [1], "gpus": [1]}, {"sampler0.0": "m0"})
    with pytest.raises(PenstockError, match="has a speed of 0"):
        placement_problem(job(1, 1, 1), star(nics, nics), {"cores": [8], "gpus": [1]}, speeds=[0])


def test_a_single_machine_must_have_all_of_what_a_task_needs() -> None:
    with pytest.raises(PenstockError, match="worker0 needs 1 cores and 1 gpus and no single machine has all of it"):
        posed(job(2, 1, 1), [100.0, 100.0], [5.0, 0.0], [0.0, 5.0])
