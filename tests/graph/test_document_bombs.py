"""YAML and JSON from others: small files that stand for enormous ones are refused at once."""

import json

import pytest
import yaml

from penstock.graph.documents import StrictDocument, parse_yaml, read_checked, read_yaml
from penstock.graph.new_folders import check_target
from penstock.report import write_report
from penstock.train.job import make_job
from refusals import refused

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
"""Ten thousand million values, in half a kilobyte."""
MERGES = "a0: &a0 {k: 1, l: 2}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)
DEEP = "[" * 100_000


class Document(StrictDocument):
    format: str
    version: int


@pytest.mark.parametrize(
    "text, said",
    [
        (BOMB, "100,000"),
        (MERGES, "100,000"),
        ("a: &a [*a]", "contains"),
        (DEEP, "nested"),
        ("{a: " * 5000, "nested"),
    ],
)
def test_a_yaml_bomb_is_one_sentence(text, said, tmp_path):
    (tmp_path / "job.yaml").write_text(text)
    with refused(f"invalid-document job.yaml YAML {said}"):
        read_yaml(tmp_path / "job.yaml", "a job")


def test_aliases_of_people_are_read():
    text = "base: &base {lr: 0.1, fanouts: [4, 3]}\nfirst: {<<: *base, lr: 0.2}\nsecond: *base\n"
    assert parse_yaml(text) == yaml.safe_load(text)
    many = "one: &one {name: m, workers: 2}\nmachines: [" + ", ".join(["*one"] * 1024) + "]\n"
    assert parse_yaml(many) == yaml.safe_load(many)
    assert parse_yaml("") is None
    assert parse_yaml("3") == 3


@pytest.mark.parametrize("field", ["optimiser_options", "schedule_options", "placement"])
def test_mappings_of_the_command_line_too(field):
    with refused(f"invalid-document {field}"):
        make_job({field: "{" + ", ".join(BOMB.splitlines()) + "}"})
    with refused(f"invalid-document {field}"):
        make_job({field: DEEP})


def test_brackets_without_end_in_json(tmp_path):
    (tmp_path / "plan.json").write_text(DEEP)
    with refused("damaged-file plan.json"):
        read_checked(tmp_path / "plan.json", Document, "penstock-plan", 1)
    (tmp_path / "run.json").write_text(DEEP)
    with refused("file-exists"):
        check_target(tmp_path, True)


def test_the_report_of_a_run_whose_job_is_a_bomb(tmp_path):
    facts = {"format": "penstock-run", "version": 1, "state": "finished", "graph": {}, "result": {}}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    (tmp_path / "job.yaml").write_text(BOMB)
    assert "job.yaml could not be read" in write_report(tmp_path).read_text()
