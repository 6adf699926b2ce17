"""The queue: jobs that wait on disk and are trained on this machine's devices, several at once where they fit together.

`database` keeps the records of jobs on disk, `folder` is the service's folder. `operations` validates submissions and
answers users. `scheduler` starts jobs and watches them, `workers/` are the processes that train, `policies` choose
which job is next, and `sharing` is how jobs share a device. `app` is the service's HTTP interface and `client` its
client.
"""

from typing import TYPE_CHECKING

from penstock.registry import Registry, lazy_names

if TYPE_CHECKING:
    from penstock.service.client import Queue
    from penstock.service.policies import QueuePolicy
    from penstock.service.sharing import SharingWay

__all__ = ["POLICIES", "SHARING", "Queue"]

POLICIES: "Registry[type[QueuePolicy]]" = Registry(
    "queue policy",
    "penstock.policies",
    {
        "fit": "penstock.service.policies:Fit",
        "base": "penstock.service.policies:Base",
        "lmcf": "penstock.service.policies:Lmcf",
        "bmc": "penstock.service.policies:Bmc",
    },
    type,
)
"""The policies by name, called with the seconds after which a waiting job goes first; the first one is the default."""
SHARING: "Registry[SharingWay]" = Registry(
    "way of sharing a device",
    "penstock.sharing",
    {
        "mps": "penstock.service.sharing:MPS",
        "time-slices": "penstock.service.sharing:TIME_SLICES",
        "streams": "penstock.service.sharing:STREAMS",
    },
)
"""The ways of sharing a device by name; `auto` is the first one that can be had."""

__getattr__, __dir__ = lazy_names(__name__)
