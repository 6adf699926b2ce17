"""The number of bins that workers choose by predicted time."""

import pytest

from penstock.nn.operator_costs import shipped_order_costs
from penstock.train.whole.memory import LayerSize
from penstock.train.whole.shared.execution import RATES, best_number, bins_by_cost
from training_graphs import community_graph
from whole_threads import train_in_threads

SIZES = [LayerSize(200_000, 300_000, 4_000_000, 100, 64), LayerSize(200_000, 300_000, 4_000_000, 64, 40)]


def test_the_number_is_the_best_of_all_by_the_model():
    forward, backward, one_way, fixed = 0.03, 0.06, 0.04, 0.001

    def seconds(bins):
        return (min(forward, one_way) + min(backward, one_way)) / bins + bins * fixed

    assert best_number(forward, backward, one_way, fixed) == min(range(1, 33), key=seconds)


def test_one_bin_where_several_would_save_little():
    """Two bins would hide half of 4 ms and cost 1 ms more, of a step of 22 ms."""
    assert best_number(0.006, 0.012, 0.002, 0.001) == 1
    assert best_number(0.006, 0.012, 0.006, 0.001) > 1


@pytest.mark.parametrize(("received", "bandwidth"), [(0, 1e9), (100_000, 1e15)])
def test_one_bin_where_there_is_nothing_to_hide(received, bandwidth):
    assert bins_by_cost(SIZES, [0, received], 4, bandwidth, RATES["cpu"]) == 1


def test_more_bins_the_more_there_is_to_hide():
    found = [bins_by_cost(SIZES, [0, rows], 4, 1e8, RATES["cpu"]) for rows in (100, 10_000, 100_000)]
    assert found == sorted(found) and found[0] < found[-1] <= 32


def test_fewer_bins_the_more_workers_get_messages():
    found = [bins_by_cost(SIZES, [0, 100_000], world, 1e8, RATES["cpu"]) for world in (2, 8, 64)]
    assert found == sorted(found, reverse=True) and found[0] > found[-1]


def test_a_slower_machine_has_more_to_hide_messages_behind():
    """Costs of operators stand for the stated rates of what is computed."""
    shipped = shipped_order_costs()["cpu"]

    def found(times):
        rates = {name: {kind: times * rate for kind, rate in of.items()} for name, of in shipped.rates.items()}
        costs = shipped.model_copy(update={"rates": rates})
        return bins_by_cost(SIZES, [0, 100_000], 4, 1e8, RATES["cpu"], costs)

    assert found(0.001) == 1 < found(0.1) < found(1)


def test_a_small_graph_has_one_bin():
    workers, _ = train_in_threads(community_graph(120), 2, epochs=1, sampler="whole", layers=2, threads=1)
    assert [facts["bins"] for _, _, facts, _ in workers] == [[1, 1], [1, 1]]
