"""Checks that an author of an extension runs on theirs: what every entry of a registry promises to those who use it.

Each takes an entry, needs nothing else, and raises AssertionError with a sentence where a promise is broken:

    from penstock.conformance import check_sampler

    def test_my_sampler():
        check_sampler(MINE)

`learning` has the checks of what is trained: samplers, layers, scorers, tasks, metrics, partitioning methods, execution
modes, ways of reading inputs, callbacks. `systems` has those of what is planned and simulated. Penstock's own entries
pass them in its tests (docs/extending.md).
"""

from typing import TYPE_CHECKING

from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.conformance.learning import (
        check_callback,
        check_execution_mode,
        check_first_layer_way,
        check_layer,
        check_metric,
        check_partitioner,
        check_sampler,
        check_scorer,
        check_task,
    )
    from penstock.conformance.systems import (
        check_all_to_all_schedule,
        check_launcher,
        check_operator,
        check_path_selector,
        check_placement,
        check_queue_policy,
        check_rate_policy,
        check_sharing,
        check_shop_scheduler,
        check_workload,
    )

__all__ = [
    "check_all_to_all_schedule",
    "check_callback",
    "check_execution_mode",
    "check_first_layer_way",
    "check_launcher",
    "check_layer",
    "check_metric",
    "check_operator",
    "check_partitioner",
    "check_path_selector",
    "check_placement",
    "check_queue_policy",
    "check_rate_policy",
    "check_sampler",
    "check_scorer",
    "check_sharing",
    "check_shop_scheduler",
    "check_task",
    "check_workload",
]

# Imported on first use: testing a rate policy does not load torch.
__getattr__, __dir__ = lazy_names(__name__)
