"""Schedules of flexible job shops: valid, never below the bound, and the best one where that is promised."""

from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest

from penstock.simulate.shop import Choice, Shop, check_schedule, make_schedule, read_fjs, shop_bound
from penstock.simulate.shop.schedule import Pick, ShopSchedule, placed, timeline_of
from penstock.simulate.shop.schedulers import SCHEDULERS
from penstock.simulate.shop.schedulers.bilevel import regrouped
from penstock.simulate.shop.shop import fjs_text
from refusals import refused

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "group.fjs"
WITHOUT_SOLVER = [name for name in SCHEDULERS if name != "cp-sat"]


def random_shop(seed, jobs=3, routes=1, operations=3, fractions=False):
    """A CPU, a bus and a GPU; every other operation has a choice."""
    rng = np.random.default_rng(seed)

    def choice(machine):
        return Choice(machine, float(rng.random() * 9 if fractions else rng.integers(1, 10)))

    def route():
        return tuple(
            (choice(1),) if place % 2 == 0 else (choice(0), choice(2))
            for place in range(rng.integers(1, operations + 1))
        )

    return Shop("random", ("cpu", "bus", "gpu"), tuple(tuple(route() for _ in range(routes)) for _ in range(jobs)))


def best_by_brute_force(shop):
    """The least makespan over all routes, all machines and all orders of operations."""
    best = np.inf
    for routes in product(*(range(len(job)) for job in shop.jobs)):
        counts = [len(job[number]) for job, number in zip(shop.jobs, routes, strict=True)]
        orders = set(permutations([job for job, count in enumerate(counts) for _ in range(count)]))
        machines = [[[c.machine for c in o] for o in shop.jobs[job][number]] for job, number in enumerate(routes)]
        for chosen in product(*(list(product(*each)) for each in machines)):
            for order in orders:
                done = [0] * len(shop.jobs)
                picks = []
                for job in order:
                    picks.append(Pick(job, chosen[job][done[job]]))
                    done[job] += 1
                best = min(best, placed(shop, routes, picks).makespan)
    return best


@pytest.mark.parametrize("seed", range(6))
def test_enumeration_finds_the_best_of_all_orders(seed):
    shop = random_shop(seed, jobs=3, routes=1 + seed % 2, operations=2, fractions=seed % 3 == 0)
    found = make_schedule(shop, "enumeration")
    assert found.makespan == pytest.approx(best_by_brute_force(shop)) and found.proved == found.makespan


@pytest.mark.parametrize("seed", range(8))
def test_every_schedule_is_valid_and_none_beats_the_bound(seed):
    shop = random_shop(seed, jobs=2 + seed % 3, routes=1 + seed % 2, operations=4)
    best = make_schedule(shop, "enumeration").makespan
    assert shop_bound(shop) <= best
    for name in WITHOUT_SOLVER:
        found = make_schedule(shop, name)
        check_schedule(shop, found)
        assert found.makespan >= best - 1e-9


def test_bilevel_is_deterministic_and_shorter_than_fifo_on_average():
    ratios = []
    for seed in range(5):
        shop = random_shop(seed, jobs=6, routes=2, operations=5)
        found = make_schedule(shop, "bilevel", {"width": 10, "tau": 3})
        assert found == make_schedule(shop, "bilevel", {"width": 10, "tau": 3})
        ratios.append(found.makespan / make_schedule(shop, "fifo").makespan)
    assert np.mean(ratios) < 1


def test_local_search_is_deterministic_and_near_the_best():
    """Of 24 operations on three machines; another seed may come to another schedule, more moves to no longer one."""
    for seed in range(4):
        shop = random_shop(seed, jobs=8, routes=1 + seed % 2, operations=5)
        found = make_schedule(shop, "local-search", {"moves": 2000})
        assert found == make_schedule(shop, "local-search", {"moves": 2000})
        listed = make_schedule(shop, "local-search", {"moves": 0})
        assert found.makespan <= listed.makespan <= make_schedule(shop, "fifo").makespan
        assert found.makespan <= 1.05 * make_schedule(shop, "bilevel").makespan
    small = [random_shop(seed, jobs=4, operations=4) for seed in range(6)]
    for shop in small:
        best = make_schedule(shop, "enumeration").makespan
        assert make_schedule(shop, "local-search", {"moves": 5000}).makespan == pytest.approx(best)


def test_a_move_finds_what_the_list_schedule_missed():
    """The long job comes last in the list on the one machine that the short ones fill."""
    times = [[(1, 7), (0, 2)], [(1, 3), (0, 6)], [(1, 4), (2, 1)], [(0, 3), (2, 8)]]
    jobs = tuple((tuple((Choice(machine, float(time)),) for machine, time in job),) for job in times)
    shop = Shop("four", ("a", "b", "c"), jobs)
    assert make_schedule(shop, "local-search").makespan == make_schedule(shop, "enumeration").makespan


def test_the_solver_proves_what_enumeration_finds():
    pytest.importorskip("ortools")
    for seed, fractions in ((0, False), (1, True)):
        shop = random_shop(seed, jobs=4, routes=2, operations=4, fractions=fractions)
        found = make_schedule(shop, "cp-sat", {"seconds": 20, "threads": 1})
        best = make_schedule(shop, "enumeration").makespan
        # Fractions are rounded to a millionth of the makespan.
        assert found.makespan == pytest.approx(best, rel=1e-4)
        assert found.proved is not None and best * 0.999 <= found.proved <= best + 1e-9


def test_the_simulator_comes_to_the_same_makespan():
    shop = random_shop(2, jobs=4, operations=4)
    for name in WITHOUT_SOLVER:
        found = make_schedule(shop, name)
        timeline, placement = timeline_of(shop, found)
        assert timeline.makespan == pytest.approx(found.makespan)
        assert placement.tolist() == [step.machine for step in found.steps]


def test_the_validator_sees_every_mistake():
    shop = read_fjs(EXAMPLE)
    good = make_schedule(shop, "fifo")
    first, others = good.steps[0], good.steps[1:]

    def bad(*steps, routes=good.routes):
        return ShopSchedule(routes, steps)

    other = next(step for step in others if step.machine == first.machine)
    overlapping = [step._replace(start=first.start, end=first.start + step.end - step.start) for step in (other,)]
    rest = [step for step in others if step != other]
    for broken, said in (
        (bad(*others), f"job {first.job + 1} each"),
        (bad(first, first, *others), f"job {first.job + 1} each"),
        (bad(first._replace(machine=0), *others), "cannot do it"),
        (bad(first._replace(end=first.end + 1), *others), "instead of"),
        (bad(first._replace(start=first.start + 50, end=first.end + 50), *others), "before"),
        (bad(first, *overlapping, *rest), "at once"),
        (bad(first._replace(job=9), *others), "not in the shop"),
        (bad(*good.steps, routes=(0,)), "routes"),
        (bad(*good.steps, routes=(1, 0, 0, 0)), "no route"),
    ):
        with refused(f"infeasible {said}"):
            check_schedule(shop, broken)
    check_schedule(shop, replace(good))


def test_regrouping_joins_a_job_with_the_one_closest_to_its_inverse():
    ratios = [2.0, -0.5, -1.9, 0.4]
    assert sorted(regrouped([(job,) for job in range(4)], ratios, 2)) == [(0, 2), (1, 3)]
    # A third job may join where the two do not cancel.
    assert sorted(regrouped([(0,), (1,), (2,)], [2.0, -1.0, -0.9], 3)) == [(0, 1, 2)]


def test_leftovers_on_one_side_are_settled_evenly():
    assert sorted(regrouped([(job,) for job in range(4)], [3.0, 1.0, 2.0, 2.5], 2)) == [(0, 1), (2, 3)]
    assert regrouped([(0,)], [1.0], 4) == [(0,)]
    joined = regrouped([(job,) for job in range(7)], [1.0, -1.0, 5.0, 4.0, 3.0, 2.0, 1.0], 3)
    assert sorted(job for group in joined for job in group) == list(range(7))
    assert all(len(group) <= 3 for group in joined)


def test_text_comes_back_as_it_was(tmp_path):
    shop = random_shop(4)
    path = tmp_path / "random.fjs"
    path.write_text(fjs_text(shop))
    assert read_fjs(path).jobs == shop.jobs
    with refused("unsupported-combination routes"):
        fjs_text(random_shop(4, routes=2))


def test_machines_may_be_numbered_from_0_or_from_1(tmp_path):
    texts = {
        "from-1": "2 3 1.5\n2 1 2 6 2 1 9 3 3\n1 1 2 2\n",
        "from-0": "2 3\n2 1 1 6 2 0 9 2 3\n1 1 1 2\n",
    }
    shops = []
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
        shops.append(read_fjs(tmp_path / f"{name}.txt"))
    assert shops[0].jobs == shops[1].jobs and shops[0].machines == shops[1].machines


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 3\n2 1 0 5 1 3 5\n", "invalid-document 0 and 3 from 1 to 3 or from 0 to 2"),
        ("", "invalid-document line 1"),
        ("2 3\n1 1 1 5\n", "invalid-document 2 jobs 1 lines"),
        ("1 3\n2 1 1 5\n", "invalid-document line 2 ends"),
        ("1 3\n1 1 1 5 7\n", "invalid-document behind"),
        ("1 3\n1 1 x 5\n", "invalid-document 'x'"),
        ("1 3\n1 2 1 6 1 7\n", "invalid-document line 2 machine 1 twice"),
        ("1 3\n1 1 4 5\n", "id-out-of-range machine 4"),
        ("1 3\n1 0\n", "missing-data job 1"),
        ("1 3\n0\n", "missing-data job 1"),
        ("0 3\n", "missing-data jobs"),
    ],
)
def test_files_that_are_no_shops(text, said, tmp_path):
    path = tmp_path / "bad.fjs"
    path.write_text(text)
    with refused(said):
        read_fjs(path)


def test_what_schedulers_refuse(tmp_path):
    shop = random_shop(1, jobs=5)
    with refused("too-large enumeration 5"):
        make_schedule(shop, "enumeration")
    with refused("invalid-document bilevel beta"):
        make_schedule(shop, "bilevel", {"beta": 0})
    with refused("id-out-of-range machine 7"):
        make_schedule(shop, "bilevel", {"links": [7]})
    with refused("unknown-name bilevle bilevel"):
        make_schedule(shop, "bilevle")
    with refused("file-not-found"):
        read_fjs(tmp_path / "none.fjs")
