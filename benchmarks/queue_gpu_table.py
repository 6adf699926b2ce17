"""Results of `queue_gpu.py` put together: partial files merged, and tables made of them."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

Result = dict[str, Any]
_KEY = ("machine", "queue", "order", "method", "memory_gb", "epochs", "scale", "jobs_asked")


def read_results(files: list[Path]) -> list[Result]:
    """All results of some files; of one that was measured twice, the later."""
    found: dict[tuple[Any, ...], Result] = {}
    for file in files:
        for result in json.loads(file.read_text())["results"] if file.exists() else []:
            found[key_of(result)] = result
    return list(found.values())


def key_of(result: Result) -> tuple[Any, ...]:
    """What tells a measurement from all others."""
    return tuple(result[name] for name in _KEY)


def write_results(file: Path, results: list[Result]) -> None:
    """Keep all results so far; a kill in the middle leaves the file before it."""
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(json.dumps({"results": results}, indent=1))
    partial.replace(file)


def measured(result: Result) -> dict[str, float]:
    """Makespan, mean completion and queueing of a queue, in seconds from the arrival of its jobs."""
    ends = [job["end_s"] for job in result["jobs"]]
    return {
        "makespan_s": max(ends),
        "completion_s": mean(ends),
        "queueing_s": mean(job["start_s"] for job in result["jobs"]),
    }


def rows_of(results: list[Result]) -> list[dict[str, Any]]:
    """A row for each machine, queue, cap of memory and method, averaged over the orders that were measured."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        case = (result["machine"], result["queue"], result["memory_gb"], result["epochs"], result["scale"])
        groups.setdefault((*case, result["method"]), []).append(result)
    rows = []
    for (*case, method), found in sorted(groups.items(), key=str):
        alone = _alone(results, case)
        cold = groups.get((*case, "cold"), [])
        times = {name: mean(measured(each)[name] for each in found) for name in measured(found[0])}
        base = {name: mean(measured(each)[name] for each in cold) if cold else None for name in times}
        jobs = [job for each in found for job in each["jobs"]]
        rows.append(
            {
                "machine": case[0],
                "queue": case[1],
                "memory_gb": case[2],
                "epochs": case[3],
                "method": method,
                "orders": len(found),
                **times,
                **{f"{name[:-2]}_gain": _ratio(base[name], times[name]) for name in times},
                "completion_over_sjf": _ratio(times["completion_s"], _shortest_first(alone)),
                "utilisation": _mean(each["utilisation"] for each in found),
                "most_memory_gb": max((each["memory_used_gb"] or 0 for each in found), default=0),
                "overhead_epochs": _mean(_overhead(each, alone) for each in found),
                "failed": sum(job["state"] != "ended" for job in jobs),
                "same_weights": f"{sum(_same(job, alone, 'weights') for job in jobs)}/{len(jobs)}",
                "same_test": f"{sum(_same(job, alone, 'test') for job in jobs)}/{len(jobs)}",
            }
        )
    return rows


def cdf_of(result: Result) -> list[tuple[float, float]]:
    """When which share of a queue's jobs has ended."""
    ends = sorted(job["end_s"] for job in result["jobs"])
    return [(round(end, 2), (place + 1) / len(ends)) for place, end in enumerate(ends)]


def _alone(results: list[Result], case: list[Any]) -> dict[str, dict[str, Any]]:
    """The jobs of a queue as each ran alone in a process of its own, by name."""
    cold = [
        each
        for each in results
        if each["method"] == "cold"
        and [each[name] for name in ("machine", "queue", "epochs", "scale")] == [case[0], case[1], case[3], case[4]]
    ]
    return {job["name"]: job for each in cold for job in each["jobs"]}


def _same(job: dict[str, Any], alone: dict[str, dict[str, Any]], field: str) -> bool:
    known = alone.get(job["name"])
    return known is not None and job.get(field) is not None and job[field] == known.get(field)


def _shortest_first(alone: dict[str, dict[str, Any]]) -> float | None:
    """Mean completion if the jobs ran one after the other, the shortest first, by their true times alone."""
    total, ends = 0.0, []
    for seconds in sorted(job["train_s"] or 0.0 for job in alone.values()):
        total += seconds
        ends.append(total)
    return mean(ends) if ends and total else None


def _overhead(result: Result, alone: dict[str, dict[str, Any]]) -> float | None:
    """Seconds of predictions and starts, in epochs of the whole queue (the source's Figure 13)."""
    known = [alone[job["name"]] for job in result["jobs"] if job["name"] in alone]
    epoch = sum((job["train_s"] or 0.0) / max(1, job["epochs"] or 1) for job in known)
    spent = sum(
        (job.get("forecast_s") or 0.0) + max(0.0, job["ran_s"] - (job["train_s"] or 0.0)) for job in result["jobs"]
    )
    return spent / epoch if epoch else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else round(a / b, 2)


def _mean(values: Any) -> float | None:
    known = [each for each in values if each is not None]
    return round(mean(known), 3) if known else None
