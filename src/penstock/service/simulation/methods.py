"""What is compared: every policy with warm workers, and one job after the other with warm and with cold ones."""

from penstock.errors import PenstockError, nearest
from penstock.plugins import has_plugin
from penstock.service.policies import PLUGINS, POLICIES, policy_named
from penstock.service.simulation.document import QueueTrace
from penstock.service.simulation.outcome import QueueOutcome
from penstock.service.simulation.simulation import simulate_queue

SEQUENTIAL = "sequential"
SEQUENTIAL_COLD = "sequential-cold"
METHODS = (*POLICIES, SEQUENTIAL, SEQUENTIAL_COLD)
"""The policies, then one job at a time on each device in the order of arrival: in a worker that is kept warm, and in a
new process for every job."""


def simulate_method(trace: QueueTrace, method: str) -> QueueOutcome:
    """The trace under a policy, or one job after the other."""
    if method not in METHODS and not has_plugin(PLUGINS, method):
        raise PenstockError(f"No queue policy is called {method!r}{nearest(method, METHODS)}", code="unknown-name")
    if method not in (SEQUENTIAL, SEQUENTIAL_COLD):
        return simulate_queue(trace, policy_named(method, trace.age_s))
    devices = [device.model_copy(update={"concurrent": 1}) for device in trace.devices]
    start_s = trace.cold_start_s if method == SEQUENTIAL_COLD else trace.warm_start_s
    return simulate_queue(trace, policy_named("base", trace.age_s), method, devices, start_s)
