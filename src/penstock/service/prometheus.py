"""What a service tells Prometheus, in its text format."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from penstock.service.records import STATES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]


def exposition(counts: Mapping[str, int], devices: Sequence[Mapping[str, Any]]) -> str:
    """The present figures of a service: `counts` of jobs by state, and `devices` as the HTTP interface shows them."""
    lines: list[str] = []
    for name, kind, about, samples in _families(counts, devices):
        lines += [f"# HELP penstock_{name} {about}", f"# TYPE penstock_{name} {kind}"]
        lines += [f"penstock_{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _families(
    counts: Mapping[str, int], devices: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, str, list[Sample]]]:
    yield "jobs", "gauge", "Jobs by state.", [({"state": state}, counts.get(state, 0)) for state in STATES]
    yield "device_jobs", "gauge", "Jobs that run on the device.", _by_device(devices, lambda each: len(each["running"]))
    for place, room, granted, measured in (
        ("device", "bytes", "granted_device_bytes", "device_bytes"),
        ("host", "host_bytes", "granted_host_bytes", "host_bytes"),
    ):
        name, about = f"{place}_memory", f"memory of the {place}"
        yield f"{name}_bytes", "gauge", f"All {about} that jobs may take.", _by_device(devices, itemgetter(room))
        about_granted = f"The {about} that was predicted for running jobs and granted to them."
        yield f"{name}_granted_bytes", "gauge", about_granted, _summed(devices, granted)
        about_peak = f"The {about} that running jobs have taken at most."
        yield f"{name}_peak_bytes", "gauge", about_peak, _summed(devices, measured)
    yield "cores", "gauge", "Cores that jobs may take.", _by_device(devices, itemgetter("cores"))
    yield "cores_granted", "gauge", "Cores of running jobs.", _summed(devices, "cores")
    running = [(device["name"], job) for device in devices for job in device["running"]]
    steps = [({"job": str(job["id"]), "device": device}, job["steps"]) for device, job in running]
    yield "job_steps_total", "counter", "Steps of a running job since its process started.", steps
    speeds = [({"job": str(job["id"]), "device": device}, job["speed"]) for device, job in running]
    known = [(labels, speed) for labels, speed in speeds if speed is not None]
    yield "job_speed", "gauge", "Speed of a running job relative to running alone.", known


def _by_device(devices: Sequence[Mapping[str, Any]], value: Callable[[Mapping[str, Any]], float]) -> list[Sample]:
    return [({"device": str(each["name"])}, float(value(each))) for each in devices]


def _summed(devices: Sequence[Mapping[str, Any]], field: str) -> list[Sample]:
    return _by_device(devices, lambda each: sum(job[field] or 0 for job in each["running"]))


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
