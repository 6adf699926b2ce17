"""What an attacker on the network could read or alter in a run; told when the run starts."""

from penstock.cluster.layout import Layout, chosen_reduction, worker_hosts
from penstock.cluster.worker.reductions import REDUCTIONS
from penstock.hardware.cluster import ClusterDocument


def exposures(cluster: ClusterDocument, layout: Layout) -> list[str]:
    """One sentence for each thing that travels unprotected; none where everything is encrypted or stays on a host."""
    if cluster.wire.security == "token":
        return [
            "security: token encrypts nothing: whoever can listen on the network reads features, labels and gradients,"
            " and whoever can alter its packets can alter them; use tls unless all is on one trusted host."
        ]
    hosts = worker_hosts(cluster, layout)
    by_workers = cluster.reduce == "all-reduce" and not REDUCTIONS[chosen_reduction(cluster, layout)].on_the_wire
    if by_workers and hosts > 1:
        return [
            f"Gradients travel in the clear between {hosts} hosts, whatever the wire's security is: torch's"
            " collectives encrypt nothing. Set reduction: wire, or leave it out, unless the network is your own."
        ]
    return []
