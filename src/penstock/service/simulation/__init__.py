"""A queue on a simulated clock: a trace of jobs under any policy, before anything runs.

`document` reads a trace, `sharing` says how fast jobs are beside each other, `simulation` moves the clock and asks the
policy what the service would ask it, `outcome` holds what came of it, `bound` what no schedule can beat, and `page`
draws all of it.
"""

from penstock.service.simulation.bound import least_makespan, least_mean_completion
from penstock.service.simulation.document import QueueTrace, read_queue_trace
from penstock.service.simulation.methods import METHODS, simulate_method
from penstock.service.simulation.outcome import QueueOutcome
from penstock.service.simulation.simulation import simulate_queue

__all__ = [
    "METHODS",
    "QueueOutcome",
    "QueueTrace",
    "least_makespan",
    "least_mean_completion",
    "read_queue_trace",
    "simulate_method",
    "simulate_queue",
]
