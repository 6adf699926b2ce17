"""Every field can be given on the command line as its default is shown."""

from importlib import import_module

import pytest

from penstock.cli.job_flags import default_text
from penstock.train.job import Job, make_job


@pytest.mark.parametrize("name", [name for name, field in Job.model_fields.items() if default_text(field)])
def test_a_flag_takes_its_own_default(name, monkeypatch):
    # The package has a function of the module's name.
    main, train = import_module("penstock.cli.main"), import_module("penstock.cli.train")
    given = []
    monkeypatch.setattr(
        train,
        "_trained",
        lambda job, resume, cluster, plan, force, trust_module, fields, progress: given.append(fields) or _stop(),
    )
    flag, text = f"--{name.replace('_', '-')}", default_text(Job.model_fields[name])
    words = [flag if text == "yes" else f"--no-{flag[2:]}"] if text in ("yes", "no") else [flag, text]
    monkeypatch.setattr("sys.argv", ["penstock", "train", *words])
    assert main.run() == 2
    (fields,) = given
    assert getattr(make_job(fields), name) == getattr(make_job({}), name)


def _stop():
    from penstock.errors import PenstockError

    raise PenstockError("enough", code="unexpected-failure")
