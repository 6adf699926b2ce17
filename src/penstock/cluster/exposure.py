"""What an attacker on the network could read or alter in a run; told when the run starts."""

from penstock.cluster.layout import Layout
from penstock.cluster.worker.reductions import REDUCTIONS
from penstock.hardware.cluster import ClusterDocument
from penstock.wire.transport import SECURITIES


def exposures(cluster: ClusterDocument, layout: Layout) -> list[str]:
    """One sentence for each thing that travels unprotected; none where everything is encrypted or stays on a host."""
    security = SECURITIES[cluster.wire.security]
    found = [security.warning] if security.warning else []
    hosts = {task.address for task in layout.of_kind("worker")}
    by_workers = cluster.reduce == "all-reduce" and not REDUCTIONS[cluster.reduction].on_the_wire
    if security.cipher is not None and by_workers and len(hosts) > 1:
        found.append(
            f"Gradients travel in the clear between {len(hosts)} hosts, whatever the wire's security is: torch's"
            " collectives encrypt nothing. Set reduction: wire, or reduce: servers, unless the network is your own."
        )
    return found
