"""The machines of a job of torchrun or srun: `machines: environment` in a cluster file."""

from typing import Any

from penstock.cluster.launch.environment.place import Place, read_place
from penstock.hardware.cluster import Machine


def with_job_machines(fields: dict[Any, Any]) -> dict[Any, Any]:
    """The fields of a cluster file, with the machines of the job that this process belongs to."""
    return {**fields, "machines": machines_of_job(read_place())}


def machines_of_job(place: Place) -> list[Machine]:
    """A machine a node, with as many workers as the job has processes there. Each finds its own address."""
    return [Machine(name=f"node{number}", workers=workers) for number, workers in enumerate(place.workers)]
