"""docs/job.md, written from the job itself: `python -m penstock.cli.job_page > docs/job.md`."""

from pydantic.fields import FieldInfo

from penstock.cli.job_flags import choices, default_text
from penstock.train.job import PARTS, Job

_INTRODUCTION = """\
# The job

Everything a run is told is one flat document: a YAML file, flags of `penstock train`, or keywords of `ps.train`. Every
field has a default. What a run was told, defaults included, is written to `job.yaml` in its folder, and
`penstock train runs/x/job.yaml --run runs/y` does it again.

```yaml
graph: data/mine
model: gat
fanouts: [10, 10]
hidden: 128
epochs: 50
lr: 0.005
patience: 10
schedule: StepLR
schedule_options: {step_size: 20, gamma: 0.5}
```

A flag has the field's name with dashes, and replaces what a file says. Lists are written with commas, mappings as in
YAML, yes and no as `--filtered` and `--no-filtered`:

```text
penstock train job.yaml --lr 0.01 --fanouts 15,10,5 --schedule-options '{step_size: 5}'
```

An unknown field is refused, with the nearest name. [Training](training.md) is the guide; this page is the list, and is
made by `python -m penstock.cli.job_page`.
"""


def job_page() -> str:
    """The whole page as text."""
    return "\n".join([_INTRODUCTION, *(_table(part) for part in PARTS)])


def _table(part: str) -> str:
    options = PARTS[part]
    first = (options.__doc__ or "").strip().splitlines()[0]
    rows = [_row(name, Job.model_fields[name]) for name in options.model_fields]
    head = ["| field | default | meaning | choices |", "|---|---|---|---|"]
    return "\n".join([f"## {part}\n", f"{first}\n", *head, *rows, ""])


def _row(name: str, field: FieldInfo) -> str:
    default = default_text(field)
    # What Markdown would take for a tag or for bold is shown as it is.
    meaning = f"{field.description}".replace("<", "\\<").replace("__", "\\_\\_")
    words = ", ".join(f"`{word}`" for word in choices(field))
    return f"| `{name}` | {f'`{default}`' if default else '-'} | {meaning} | {words or '-'} |"


if __name__ == "__main__":
    print(job_page(), end="")
