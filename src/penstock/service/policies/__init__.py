"""Which waiting job starts where and when: one file for each policy.

`POLICIES` is the table of contents. A new policy is one file and one line here (docs/queue.md). A policy sees memory,
cores, throughput and time, never how jobs are started or what they train.
"""

from penstock.errors import PenstockError, nearest
from penstock.plugins import has_plugin, load_plugin
from penstock.service.policies.base import Base
from penstock.service.policies.bmc import Bmc
from penstock.service.policies.fit import Fit
from penstock.service.policies.lmcf import Lmcf
from penstock.service.policies.policy import AGE_S, DeviceRoom, JobNeeds, Policy, RunningJob, Start, WaitingJob
from penstock.service.policies.room import never_fits

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Fit, Base, Lmcf, Bmc)}
"""The policies by name; the first one is the default."""
PLUGINS = "penstock.policies"
"""The group of entry points by which packages offer further ones."""

__all__ = [
    "AGE_S",
    "POLICIES",
    "DeviceRoom",
    "JobNeeds",
    "Policy",
    "RunningJob",
    "Start",
    "WaitingJob",
    "never_fits",
    "policy_named",
]


def policy_named(name: str, age_s: float = AGE_S) -> Policy:
    """The policy of that name; a job that has waited for more than `age_s` seconds goes first under all of them."""
    if name not in POLICIES and has_plugin(PLUGINS, name):
        plugin: type[Policy] = load_plugin(PLUGINS, name, type)
        return plugin(age_s)
    if name not in POLICIES:
        raise PenstockError(f"No queue policy is called {name!r}{nearest(name, POLICIES)}", code="unknown-name")
    return POLICIES[name](age_s)
