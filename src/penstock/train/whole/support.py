"""What training on the whole graph supports."""

from dataclasses import replace

from penstock.train.execution.support import Support

WHOLE = Support(
    weights_and_times=True,
    compute_types=frozenset({"float32", "tf32", "bfloat16"}),
)
WHOLE_CAPTURED = replace(
    WHOLE,
    learned_rows=False,
    norms=frozenset({"none", "layer"}),
    optimisers=frozenset({"Adam", "AdamW", "SGD"}),
    moving_momentum=False,
)
"""Steps on the whole graph that are captured once and replayed."""
WHOLE_SHARED = replace(WHOLE, user_modules=False)
"""Among workers, each of which computes rows of its own vertices layer by layer."""
