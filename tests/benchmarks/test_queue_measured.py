"""Queues of measured jobs on a simulated clock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "queue_measured.py"


def results(cold_start, warm_start, share):
    """Three jobs that were run one by one, and two at once, where each slows the other down by what is missing."""
    seconds, ended = [10.0, 10.0, 20.0], {}
    for method, start in (("cold", cold_start), ("warm", warm_start)):
        at, jobs = 0.0, []
        for number, train in enumerate(seconds):
            at += start + train
            job = {"name": f"job {number}", "state": "ended", "train_s": train, "ran_s": start + train, "end_s": at}
            jobs.append(job | {"device_bytes": 2_000_000_000})
        ended[method] = jobs
    together = warm_start + 10.0 * 2 * share
    times = [together, together, together + warm_start + 20.0]
    ended["base"] = [job | {"end_s": end} for job, end in zip(ended["warm"], times, strict=True)]
    return [{"queue": "gcn", "order": 0, "method": method, "jobs": jobs} for method, jobs in ended.items()]


def test_what_was_measured_is_simulated_and_longer_jobs_gain_less(tmp_path):
    file = tmp_path / "queue.json"
    more = {"machine": "here", "memory_gb": None, "epochs": 1, "scale": 1.0, "jobs_asked": 3}
    found = [each | more for each in results(6.0, 1.0, 0.8)]
    # What was run with other epochs is another experiment.
    found.append({**found[0], "epochs": 10, "jobs": [{**job, "end_s": 1e6} for job in found[0]["jobs"]]})
    file.write_text(json.dumps({"results": found}))
    command = [sys.executable, str(SCRIPT), str(file), "--orders", "3", "--json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = rows["rows"] if isinstance(rows, dict) else rows
    checked = {row["method"]: row for row in rows if "measured_s" in row}
    assert set(checked) == {"cold", "warm", "base"}
    assert all(row["error"] == pytest.approx(0, abs=0.03) for row in checked.values())
    longer = {row["method"]: row for row in rows if "measured_s" not in row and row["memory_gb"] == 26.0}
    # Starts are 6 of 66 s, and the device gives 1 / 0.8 of what one job uses.
    assert 1.0 < longer["fit"]["makespan over cold"] < 66 / 60 / 0.8
    assert longer["fit"]["makespan over bound"] >= 1.0
