"""The operators of the cost model, and the table of all of them.

`entry` is what an operator declares: its sizes, the work that follows from them, and how it is run to be measured. The
other files have the entries, by what operators do: `sampling`, `rows`, `neighbours`, `dense` and `reduction`. A new
operator is an entry in one of them and its line in `OPERATORS`.
"""

from penstock.cost.operators.dense import (
    ADD,
    COLUMN_SUM,
    DENSE,
    DENSE_INPUT_GRADIENT,
    DENSE_WEIGHT_GRADIENT,
    LOSS,
    OPTIMISER,
    RELU_DROP,
    RELU_DROP_BACKWARD,
)
from penstock.cost.operators.entry import Operator, Rung
from penstock.cost.operators.neighbours import (
    AGGREGATE,
    AGGREGATE_BACKWARD,
    AGGREGATE_TABLE,
    ATTEND,
    ATTEND_BACKWARD,
    SCORES,
    SELF_LOOPS,
    TRANSPOSE,
)
from penstock.cost.operators.reduction import ALL_REDUCE
from penstock.cost.operators.rows import COPY_DOWN, COPY_UP, GATHER, HOST_AGGREGATE, HOST_GATHER, PINNED_READ
from penstock.cost.operators.sampling import SAMPLE
from penstock.registry import Registry

OPERATORS: Registry[Operator] = Registry(
    "operator",
    "penstock.operators",
    {
        entry.name: entry
        for entry in (
            SAMPLE,
            GATHER,
            AGGREGATE,
            AGGREGATE_TABLE,
            AGGREGATE_BACKWARD,
            TRANSPOSE,
            ATTEND,
            ATTEND_BACKWARD,
            SCORES,
            SELF_LOOPS,
            DENSE,
            DENSE_WEIGHT_GRADIENT,
            DENSE_INPUT_GRADIENT,
            RELU_DROP,
            RELU_DROP_BACKWARD,
            ADD,
            COLUMN_SUM,
            LOSS,
            OPTIMISER,
            COPY_UP,
            COPY_DOWN,
            PINNED_READ,
            HOST_GATHER,
            HOST_AGGREGATE,
            ALL_REDUCE,
        )
    },
    Operator,
)

__all__ = ["OPERATORS", "Operator", "Rung"]
