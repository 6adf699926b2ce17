"""What training on the whole graph supports."""

from penstock.train.execution.support import Support

WHOLE = Support(
    weights_and_times=True,
    compute_types=frozenset({"float32", "tf32", "bfloat16"}),
)
