"""Penstock's own entries keep what `penstock.conformance` asks of every entry; broken ones are found out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock import conformance
from penstock.cluster.launch import LAUNCHERS
from penstock.coflow import SCHEDULES
from penstock.cost.operators import OPERATORS
from penstock.nn.layer_table import LAYERS, WITHOUT_LAYERS
from penstock.nn.scorer_table import SCORERS
from penstock.partition.methods import METHODS
from penstock.paths import SELECTORS
from penstock.plan.placement import PLACEMENTS
from penstock.sampling.sampler_table import SAMPLERS, SEEDS_ONLY
from penstock.service import POLICIES as QUEUE_POLICIES
from penstock.service import SHARING
from penstock.simulate import POLICIES as RATE_POLICIES
from penstock.simulate.shop.schedulers import SCHEDULERS
from penstock.train.execution_modes import EXECUTION_MODES
from penstock.train.first_layer.ways import WAYS
from penstock.train.job_options import FIRST_LAYERS
from penstock.train.metrics import METRICS
from penstock.train.tasks import TASKS

OF_VERTICES = [
    name for name, entry in TASKS.items() if entry.facts.about == "vertices" and entry.facts.learns == "classes"
]
ON_HOSTS = [name for name, mode in EXECUTION_MODES.items() if not (mode.on_device or mode.among_workers)]


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != SEEDS_ONLY])
def test_samplers(name):
    entry = SAMPLERS[name]
    assert entry.name == name
    conformance.check_sampler(entry, exact=name != "labor")


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in WITHOUT_LAYERS])
def test_layers(name):
    assert LAYERS[name].name == name
    conformance.check_layer(LAYERS[name])


@pytest.mark.parametrize("name", SCORERS)
def test_scorers(name):
    conformance.check_scorer(SCORERS[name])


@pytest.mark.parametrize("name", METHODS)
def test_partitioners(name):
    conformance.check_partitioner(METHODS[name])


@pytest.mark.parametrize("name", OF_VERTICES)
def test_tasks(name):
    conformance.check_task(name, TASKS[name])


@pytest.mark.parametrize("name", METRICS)
def test_metrics(name):
    conformance.check_metric(METRICS[name])


def test_a_metric_whose_direction_is_wrong_fails():
    with pytest.raises(AssertionError, match="wrong predictions"):
        conformance.check_metric(replace(METRICS["mae"], better="higher"))


@pytest.mark.parametrize("name", ON_HOSTS)
def test_execution_modes(name):
    conformance.check_execution_mode(EXECUTION_MODES[name])


@pytest.mark.parametrize("name", WAYS)
def test_first_layer_ways(name):
    if WAYS[name].on_both:
        pytest.skip("it divides rows between a host and its GPU")
    conformance.check_first_layer_way(WAYS[name])


def test_jobs_know_all_ways():
    assert tuple(WAYS) == FIRST_LAYERS


@pytest.mark.parametrize("name", RATE_POLICIES)
def test_rate_policies(name):
    conformance.check_rate_policy(RATE_POLICIES[name])


@pytest.mark.parametrize("name", SCHEDULES)
def test_all_to_all_schedules(name):
    conformance.check_all_to_all_schedule(SCHEDULES[name], matching=name != "fair")


@pytest.mark.parametrize("name", PLACEMENTS)
def test_placements(name):
    conformance.check_placement(PLACEMENTS[name])


@pytest.mark.parametrize("name", QUEUE_POLICIES)
def test_queue_policies(name):
    conformance.check_queue_policy(QUEUE_POLICIES[name])


@pytest.mark.parametrize("name", SHARING)
def test_sharing(name):
    conformance.check_sharing(SHARING[name])


@pytest.mark.parametrize("name", SELECTORS)
def test_path_selectors(name):
    conformance.check_path_selector(SELECTORS[name])


@pytest.mark.parametrize("name", SCHEDULERS)
def test_shop_schedulers(name):
    conformance.check_shop_scheduler(SCHEDULERS[name])


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    conformance.check_operator(OPERATORS[name])


def test_launchers():
    conformance.check_launcher(LAUNCHERS["local"])


def test_callbacks():
    seen = []
    conformance.check_callback(lambda result: seen.append(result.epoch))
    assert seen == [1, 2]


class Forgetful(torch.nn.Module):
    """A layer that reads the first of a vertex's neighbours only, so that their order counts."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.linear = torch.nn.Linear(width_in, width_out)

    def forward(self, block, x):
        first = [int(block.indices[start]) if start < len(block.indices) else 0 for start in block.indptr[:-1]]
        return self.linear(x[first])


def test_broken_entries_are_found_out():
    with pytest.raises(AssertionError, match="order of a vertex's neighbours"):
        conformance.check_layer(
            replace(LAYERS["sage"], name="forgetful", build=lambda o, i, w, last: Forgetful(i, w), build_typed=None)
        )
    with pytest.raises(AssertionError, match="no vertices"):
        conformance.check_partitioner(lambda problem: np.zeros(problem.whole.count, np.int32))
    with pytest.raises(AssertionError, match="others are sent"):
        conformance.check_all_to_all_schedule(lambda demand: [])
    with pytest.raises(AssertionError, match="fan-out"):
        more = replace(
            SAMPLERS["neighbour"],
            name="more",
            build=lambda source, settings: SAMPLERS["neighbour"].build(
                source, settings._replace(options=settings.options.model_copy(update={"fanouts": [9, 9]}))
            ),
        )
        conformance.check_sampler(more)
