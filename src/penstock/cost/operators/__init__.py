"""The operators that the cost model knows: one file for each family, and the table of all of them.

An entry says which sizes an operator has, which work these make, and how it is run to be measured. A new operator is an
entry in a file of this folder and its line in `OPERATORS`.
"""

from penstock.cost.operators.aggregation import AGGREGATE, AGGREGATE_BACKWARD, AGGREGATE_TABLE, TRANSPOSE
from penstock.cost.operators.attention import ATTEND, ATTEND_BACKWARD, SCORES, SELF_LOOPS
from penstock.cost.operators.elementwise import ADD, COLUMN_SUM, RELU_DROP, RELU_DROP_BACKWARD
from penstock.cost.operators.entry import Operator, Rung
from penstock.cost.operators.gather import GATHER
from penstock.cost.operators.host_rows import HOST_AGGREGATE, HOST_GATHER
from penstock.cost.operators.products import DENSE, DENSE_INPUT_GRADIENT, DENSE_WEIGHT_GRADIENT
from penstock.cost.operators.reduction import ALL_REDUCE
from penstock.cost.operators.sampling import SAMPLE
from penstock.cost.operators.transfers import COPY_DOWN, COPY_UP, PINNED_READ
from penstock.cost.operators.update import LOSS, OPTIMISER

OPERATORS: dict[str, Operator] = {
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
}

__all__ = ["OPERATORS", "Operator", "Rung"]
