"""The operators of the cost model, and the table of all of them.

`entry` is what an operator declares: its sizes, the work that follows from them, and how it is run to be measured. It
has the dense ones; the other files have the others, by what they do: `rows` (draws among them), `neighbours` and
`reduction`. A new operator is an entry in one of them and its line in `OPERATORS`.
"""

from penstock.cost.operators.entry import Operator, Rung
from penstock.registry import Registry

OPERATORS: Registry[Operator] = Registry(
    "operator",
    "penstock.operators",
    {
        "sample": "penstock.cost.operators.rows:SAMPLE",
        "gather": "penstock.cost.operators.rows:GATHER",
        "aggregate": "penstock.cost.operators.neighbours:AGGREGATE",
        "aggregate_table": "penstock.cost.operators.neighbours:AGGREGATE_TABLE",
        "aggregate_backward": "penstock.cost.operators.neighbours:AGGREGATE_BACKWARD",
        "transpose": "penstock.cost.operators.neighbours:TRANSPOSE",
        "attend": "penstock.cost.operators.neighbours:ATTEND",
        "attend_backward": "penstock.cost.operators.neighbours:ATTEND_BACKWARD",
        "scores": "penstock.cost.operators.neighbours:SCORES",
        "self_loops": "penstock.cost.operators.neighbours:SELF_LOOPS",
        "dense": "penstock.cost.operators.entry:DENSE",
        "dense_weight_gradient": "penstock.cost.operators.entry:DENSE_WEIGHT_GRADIENT",
        "dense_input_gradient": "penstock.cost.operators.entry:DENSE_INPUT_GRADIENT",
        "relu_drop": "penstock.cost.operators.entry:RELU_DROP",
        "relu_drop_backward": "penstock.cost.operators.entry:RELU_DROP_BACKWARD",
        "add": "penstock.cost.operators.entry:ADD",
        "column_sum": "penstock.cost.operators.entry:COLUMN_SUM",
        "loss": "penstock.cost.operators.entry:LOSS",
        "optimiser": "penstock.cost.operators.entry:OPTIMISER",
        "copy_up": "penstock.cost.operators.rows:COPY_UP",
        "copy_down": "penstock.cost.operators.rows:COPY_DOWN",
        "pinned_read": "penstock.cost.operators.rows:PINNED_READ",
        "host_gather": "penstock.cost.operators.rows:HOST_GATHER",
        "host_aggregate": "penstock.cost.operators.rows:HOST_AGGREGATE",
        "all_reduce": "penstock.cost.operators.reduction:ALL_REDUCE",
    },
    Operator,
)

__all__ = ["OPERATORS", "Operator", "Rung"]
