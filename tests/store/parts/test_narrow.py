"""Rows narrowed to float16 and widened again, the same on every processor."""

import numpy as np

from forks import run_forked
from penstock.store.parts.narrow import WIDE


def test_the_table_holds_every_float16():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        expected = halves.astype(np.float32)
    finite = np.isfinite(halves)
    np.testing.assert_array_equal(WIDE[finite].view(np.uint32), expected[finite].view(np.uint32))
    np.testing.assert_array_equal(np.isnan(WIDE), np.isnan(expected))
    np.testing.assert_array_equal(WIDE[np.isinf(halves)], expected[np.isinf(halves)])


def test_importing_raises_no_floating_point_error_on_any_processor():
    script = (
        "import warnings, numpy as np; warnings.simplefilter('error'); np.seterr(all='raise')\n"
        "import importlib; import penstock.store.parts.narrow as narrow; importlib.reload(narrow)"
    )
    done = run_forked(["python", script])
    assert done.returncode == 0, done.stderr
