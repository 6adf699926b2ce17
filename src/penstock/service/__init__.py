"""The queue: jobs that wait on disk and are trained on this machine's devices, several at once where they fit together.

`records` describes a job, `database` keeps it on disk, `folder` is the service's folder. `operations` validates
submissions and answers users. `scheduler` starts jobs and watches them, `workers/` are the processes that train,
`policies` choose which job is next, and `sharing` is how jobs share a device. `app` is the service's HTTP interface and
`client` its client.
"""

from typing import TYPE_CHECKING

from penstock.imports import lazy_names

if TYPE_CHECKING:
    from penstock.service.client import Queue

__all__ = ["Queue"]

__getattr__ = lazy_names(__name__, {"penstock.service.client": ("Queue",)})
