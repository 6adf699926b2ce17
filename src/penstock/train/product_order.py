"""The costs by which a run's layers choose their order of products: known when it starts, and kept in its job."""

from penstock.cost.machine_model import machine_order_costs
from penstock.nn.order_costs import shipped_order_costs
from penstock.train.job import Job


def with_order_costs(job: Job, built: bool = False) -> Job:
    """The job with the costs that `order: auto` predicts with, where it has none yet.

    They are this machine's, or those that come with Penstock where it was not measured, or where the model was `built`
    before. Two orders round differently: with the costs in its job a run decides alike wherever it goes on.
    """
    asked = job.order if isinstance(job.order, list) else [job.order]
    if "auto" not in asked or job.order_costs or job.module is not None:
        return job
    return job.model_copy(update={"order_costs": shipped_order_costs() if built else machine_order_costs()})
