"""Published figures of the small real graphs, with the recipes of benchmarks/accuracy.py and some of its ten seeds."""

import importlib.util
import statistics
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"
DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def accuracy():
    spec = importlib.util.spec_from_file_location("accuracy", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # Named tuples look their module up.
        patch.setitem(sys.modules, "accuracy", module)
        spec.loader.exec_module(module)
        yield module


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the real graphs are not there")
@pytest.mark.parametrize(
    ("name", "spread", "short", "seeds"),
    [
        ("cora:gcn", 0.64, 0, 1),
        pytest.param("cora:gcn", 0.64, 0, 3, marks=pytest.mark.long),
        pytest.param("citeseer:gcn", 0.56, 0, 3, marks=pytest.mark.long),
        pytest.param("aifb:rgcn", 2.27, 1.36, 3, marks=pytest.mark.long),
    ],
)
def test_published_figure_is_reached(accuracy, name, spread, short, seeds):
    # The mean of ten seeds should come within a point. That of n strays from it by spread * sqrt(1/n - 1/10), where
    # spread is the standard deviation over seeds (docs/measurements.md): two such strays are let pass.
    # aifb's ten miss it, by `short` (94.4 for 95.8): there this guards against a fall only.
    (recipe,) = accuracy.chosen(name, "cpu")
    stray = spread * (1 / seeds - 1 / 10) ** 0.5
    planned = [accuracy.Planned(recipe, seed, DATA, "test", {}) for seed in range(seeds)]
    scores = [accuracy.measured(each)["score"] for each in planned]
    assert statistics.fmean(scores) >= recipe.published - 1 - short - 2 * stray
