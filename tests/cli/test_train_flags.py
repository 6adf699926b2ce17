"""Every field can be given on the command line as its default is shown."""

from importlib import import_module

import pytest

from in_process import forget_commands
from penstock.cli.job_flags import default_text
from penstock.cli.main import run
from penstock.errors import PenstockError
from penstock.train.job import JobFields, make_job

DEFAULTS = {name: text for name, field in JobFields.model_fields.items() if (text := default_text(field))}


def words_of(name: str) -> list[str]:
    """What gives a field its default on the command line."""
    flag, text = name.replace("_", "-"), DEFAULTS[name]
    return {"yes": [f"--{flag}"], "no": [f"--no-{flag}"]}.get(text, [f"--{flag}", text])


@pytest.fixture(scope="module")
def parsed():
    """What a command line with every flag and its default gives; parsed once, as most of the time goes there."""
    given = []

    def stop(job, resume, cluster, gpus, plan, force, trust_module, fields, progress):
        given.append(fields)
        raise PenstockError("enough", code="unexpected-failure")

    with pytest.MonkeyPatch.context() as patch:
        # The package has a function of the module's name.
        patch.setattr(import_module("penstock.cli.train"), "_trained", stop)
        patch.setattr("sys.argv", ["penstock", "train", *(word for name in DEFAULTS for word in words_of(name))])
        forget_commands()
        assert run() == 2
    (fields,) = given
    return fields


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_flag_takes_its_own_default(name, parsed):
    assert getattr(make_job({name: parsed[name]}), name) == getattr(make_job({}), name)
