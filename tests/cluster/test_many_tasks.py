"""What a run of many tasks keeps in bounds: its flows, its trace, and what it asks of its controller."""

from wired import template_for, wired

from penstock.cluster.run import largest_flows
from penstock.train.run_files.records import is_traced


def test_the_largest_flows_are_kept_and_the_others_summed():
    flows = {f"worker-{at}>store-{at % 7}": [at, 2 * at] for at in range(5000)}
    kept = largest_flows(flows)
    assert len(kept) == 2001 and min(sum(each) for name, each in kept.items() if name in flows) == 3 * 3000
    assert [sum(each) for each in zip(*kept.values(), strict=True)] == [sum(range(5000)), 2 * sum(range(5000))]
    assert largest_flows(dict(list(flows.items())[:2000])) == dict(list(flows.items())[:2000])


def test_workers_that_are_traced_are_spread_over_all():
    assert all(is_traced(rank, 64) for rank in range(64))
    traced = [rank for rank in range(1000) if is_traced(rank, 1000)]
    assert len(traced) <= 64 and traced[0] == 0 and max(traced) > 980


def test_a_controller_hears_of_many_tasks_as_often_as_of_some():
    """And yet each gives a sign in time."""
    seldom = {}
    for workers, patience in ((2, 60.0), (256, 60.0), (256, 2.0)):
        endpoint, (member,) = wired(template_for(workers, patience=patience), {}, (0,))
        with endpoint, member:
            seldom[workers, patience] = member._between_beats, member._again
    assert seldom[2, 60.0] == (0.5, 0.01)
    assert seldom[256, 60.0] == (257 * 2e-3, 257 * 4e-4) and seldom[256, 2.0][0] == 0.5
