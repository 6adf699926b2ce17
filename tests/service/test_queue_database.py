"""The durable queue: what is written stays, in order, and quickly enough for thousands."""

import sqlite3
import time

import pytest

from penstock.service.database import VERSION, Database, age_of, moment
from refusals import refused

JOB = {"name": "a job", "document": {"lr": 0.01}, "priority": 0, "kind": "cpu", "cores": 1, "run": "", "likeness": "x"}


@pytest.fixture
def database(tmp_path):
    found = Database(tmp_path / "queue.sqlite")
    yield found
    found.close()


def runs(number):
    return f"/runs/{number}"


def test_jobs_are_there_after_the_database_was_opened_again(tmp_path):
    first = Database(tmp_path / "q.sqlite")
    added = first.add([JOB, {**JOB, "priority": 3}], runs)
    first.change(2, state="waiting", host_bytes=5, forecast={"moment": "backward"})
    # No close: a killed process makes none either.
    second = Database(tmp_path / "q.sqlite")
    assert [job.id for job in added] == [1, 2]
    assert second.job(1) == added[0]
    found = second.job(2)
    assert (found.state, found.host_bytes, found.priority, found.forecast) == ("waiting", 5, 3, {"moment": "backward"})
    first.close()
    second.close()


def test_several_jobs_are_added_together_or_not_at_all(database):
    with refused("in-use run"):
        database.add([{**JOB, "run": "/same"}, {**JOB, "run": "/same"}], runs)
    assert database.jobs() == []
    assert database.add([JOB], runs)[0].id == 1


def test_a_run_folder_may_be_used_again_by_a_job_when_the_other_has_ended(database):
    database.add([{**JOB, "run": "/same"}], runs)
    database.change(1, state="failed")
    assert database.add([{**JOB, "run": "/same"}], runs)[0].id == 2


def test_a_change_happens_only_from_the_states_it_names(database):
    database.add([JOB], runs)
    assert not database.change(1, ("waiting",), state="starting")
    assert database.job(1).state == "submitted"
    assert database.change(1, ("submitted",), state="waiting")
    assert database.job(1).state == "waiting"


def test_every_change_is_told(tmp_path):
    told = []
    database = Database(tmp_path / "q.sqlite", lambda job: told.append((job.id, job.state)))
    database.add([JOB, JOB], runs)
    database.change(1, state="waiting")
    database.change(1, ("running",), state="ended")
    assert told == [(1, "submitted"), (2, "submitted"), (1, "waiting")]
    database.close()


def test_lists_come_in_pages(database):
    database.add([JOB] * 7, runs)
    database.change(3, state="ended")
    first = database.jobs(limit=3)
    assert [job.id for job in first] == [7, 6, 5]
    assert [job.id for job in database.jobs(before=5, limit=3)] == [4, 3, 2]
    assert [job.id for job in database.jobs(("ended", "failed"))] == [3]
    assert database.counts() == {"ended": 1, "submitted": 6}


def test_an_unknown_job_and_a_newer_database_are_refused(tmp_path, database):
    with refused("unknown-name 12"):
        database.job(12)
    path = tmp_path / "newer.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with refused(f"unsupported-version {VERSION + 1} --folder"):
        Database(path)
    (tmp_path / "text").write_text("no database at all, but long enough to be read as a page " * 100)
    with refused("damaged-file text"):
        Database(tmp_path / "text")


def test_a_database_of_an_earlier_release_is_brought_up_to_date(tmp_path):
    path = tmp_path / "q.sqlite"
    old = Database(path)
    old.add([JOB, JOB], runs)
    old.close()
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "DROP INDEX jobs_by_sweep; ALTER TABLE jobs DROP COLUMN sweep; ALTER TABLE jobs DROP COLUMN metric;"
            " PRAGMA user_version = 1"
        )
    connection.close()
    for _ in range(2):
        database = Database(path)
        assert [(job.id, job.sweep, job.metric) for job in database.jobs()] == [(2, None, {}), (1, None, {})]
        database.close()
    database = Database(path)
    assert [job.sweep for job in database.add([JOB, JOB], runs)] == [3, 3]
    assert database.metrics_of_sweep(3) == {3: {}, 4: {}}
    database.close()


def test_a_job_alike_is_found_first_among_those_that_have_ended(database):
    database.add([JOB, JOB, JOB, {**JOB, "likeness": "y"}], runs)
    assert database.alike(3) is None
    database.change(2, state="waiting", host_bytes=10)
    assert database.alike(3).id == 2
    database.change(1, state="ended", seconds=4.0)
    assert database.alike(3).id == 1
    assert database.alike(4) is None
    rows = {row["id"]: row["known_s"] for row in database.waiting(("submitted", "waiting"))}
    assert rows == {2: 4.0, 3: 4.0, 4: None}


def test_forecast_seconds_are_corrected_by_the_jobs_that_have_ended(database):
    assert database.corrections() == {}
    database.add([JOB] * 5, runs)
    for number, (took, forecast) in enumerate([(30.0, 10.0), (8.0, 4.0), (9.0, 9.0), (5.0, None)], 1):
        told = {} if forecast is None else {"run": {"total_s": forecast}}
        database.change(number, state="ended", seconds=took, forecast=told)
    database.change(5, state="waiting", seconds=2.0, forecast={"run": {"total_s": 7.0}})
    assert database.corrections() == {JOB["kind"]: 2.0}
    (row,) = database.waiting(("waiting",))
    assert (row["predicted_s"], row["seconds"]) == (7.0, 2.0)


def test_what_waits_is_told_with_its_predicted_share(database):
    database.add([JOB, JOB], runs)
    database.change(1, state="waiting", forecast={"throughput_share": 0.25})
    database.change(2, state="waiting", forecast={"method": "traced"})
    assert [row["throughput_share"] for row in database.waiting(("waiting",))] == [0.25, None]


@pytest.mark.long  # it measures time
def test_ten_thousand_jobs_are_queued_listed_and_counted_quickly(database):
    for _ in range(10):
        database.add([JOB] * 1000, runs)
    for work in (
        lambda: database.add([JOB], runs),
        lambda: database.jobs(limit=100),
        lambda: database.jobs(("submitted",), before=5000, limit=100),
        database.counts,
        lambda: database.change(5000, state="waiting"),
        lambda: database.waiting(("submitted",)),
    ):
        took = []
        for _ in range(3):
            start = time.perf_counter()
            work()
            took.append(time.perf_counter() - start)
        assert min(took) < 0.2


def test_ages_do_not_depend_on_the_clock_on_the_wall(monkeypatch):
    kept = moment()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= age_of(kept) < 60
    assert age_of("another-start 5.0") == 0
    assert age_of(None) == 0
