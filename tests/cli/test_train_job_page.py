"""docs/job.md is made from the job, and must be made again when the job changes."""

from pathlib import Path

import yaml

from penstock.cli.doc_pages import job_page
from penstock.train.job import PARTS, JobFields, make_job

PAGE = Path(__file__).parents[2] / "docs" / "job.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == job_page(), "run `python -m penstock.cli.doc_pages job > docs/job.md`"


def test_every_field_is_on_the_page_once():
    lines = job_page().splitlines()
    for name in JobFields.model_fields:
        assert sum(line.startswith(f"| `{name}` |") for line in lines) == 1, name
    assert {name for options in PARTS.values() for name in options.model_fields} == set(JobFields.model_fields)
    assert all(field.description for field in JobFields.model_fields.values())


def test_its_example_is_a_job():
    (example,) = [block.split("```")[0] for block in job_page().split("```yaml\n")[1:]]
    assert make_job(yaml.safe_load(example)).schedule_options == {"step_size": 20, "gamma": 0.5}
