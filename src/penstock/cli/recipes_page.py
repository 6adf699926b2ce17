"""docs/recipes.md, made from the recipes: `python -m penstock.cli.recipes_page > docs/recipes.md`."""

from penstock.train.recipes import Recipe, shipped_recipes

_INTRODUCTION = """\
# Recipes

A recipe is a job file that gives a published figure: for a data set and a model all the settings, with the figure
that was published, where, and what these settings reached here. Use one to see that your installation works, as a
starting point for a set of your own, or to compare a new model with an old one that is known to be trained well.

```console
penstock recipes
penstock recipes cora
penstock recipes cora gat --out job.yaml
```

The job file names the archive of its set, `cora.npz` ([layouts](graph-format.md#numpy-archives)). With `--data
FOLDER` it names the one in that folder, and `penstock train` trains it:

```text
penstock recipes cora gat --data data --out cora.yaml
penstock train cora.yaml
```

Some figures are of graphs that were changed first: features divided by their sums, labels of the largest component
alone, or validation vertices in the training split. The job file of such a recipe begins with the command that makes
the changed graph (`penstock data prepare`), and names that folder.

Any other graph takes the place of the set with `penstock train job.yaml --graph data/mine`.

In Python, the same job is a dictionary:

```python
import penstock as ps
from penstock.train.recipes import recipe_for

recipe = recipe_for("cora", "gat")
print(recipe.published, recipe.source)
fields = recipe.fields(seed=0)           # of a job: ps.train(**fields) trains it
print(recipe.prepare)                    # what is done to the archive first
```

`benchmarks/accuracy.py` trains all of them with ten seeds, `--processes` at a time, and prints ours beside the
published figures. Sets marked "split k" take another split with each seed: the one of that number where a set has
ten, and else one drawn by the job's `split`.

Figures are percentages: mean ± standard deviation over ten seeds, unless it says otherwise, of the model that is best
in validation. * marks published figures quoted from memory, without the paper at hand: a guide, not a gate. "Not
measured" says that a recipe has not been trained to its end.
"""


def recipes_page() -> str:
    """The whole page as text."""
    recipes = shipped_recipes()
    triples = [recipe for recipe in recipes if "scorer" in recipe.job]
    known = [recipe for recipe in recipes if recipe.published is not None and recipe not in triples]
    others = [recipe for recipe in recipes if recipe.published is None]
    parts = [
        _INTRODUCTION,
        _part("Vertices", "Which class a vertex has.", known),
        _part(
            "Knowledge graphs",
            "Which entity is missing in a triple: filtered ranks over all entities and both directions"
            " ([Knowledge graphs](knowledge-graphs.md)). These are for a GPU; models are named by their `scorer`.",
            triples,
        ),
        _part("Sets without a published figure", "Settings that work, for sets that papers split otherwise.", others),
        _sources(recipes),
    ]
    return "\n".join(parts)


def _part(title: str, first: str, recipes: list[Recipe]) -> str:
    head = ["| set | model | metric | published | reached | splits |", "|---|---|---|---|---|---|"]
    rows = [
        f"| {recipe.set} | {recipe.model} | {recipe.metric} | {recipe.published_text or '-'} |"
        f" {recipe.reached_text or 'not measured'} | {'split k' if recipe.split_by_seed else 'one'} |"
        for recipe in recipes
    ]
    notes = [f"- {recipe.set}, {recipe.model}: {recipe.note}" for recipe in recipes if recipe.note]
    return "\n".join([f"## {title}\n", f"{first}\n", *head, *rows, "", *([*notes, ""] if notes else [])])


def _sources(recipes: tuple[Recipe, ...]) -> str:
    found = dict[str, list[str]]()
    for recipe in recipes:
        if recipe.source:
            found.setdefault(recipe.source, []).append(f"{recipe.set} {recipe.model}")
    lines = [f"- {source}: {', '.join(names)}." for source, names in sorted(found.items())]
    return "\n".join(["## Sources of the published figures\n", *lines, ""])


if __name__ == "__main__":
    print(recipes_page(), end="")
