"""The fields whose values are timed where a job leaves them open."""

from penstock.train.finalists.finalist import OpenField
from penstock.train.finalists.first_layer_ways import FIRST_LAYER
from penstock.train.finalists.group_sizes import GROUPS
from penstock.train.finalists.product_orders import ORDER
from penstock.train.finalists.row_paths import FEATURE_PATHS

OPEN_FIELDS: dict[str, OpenField] = {each.name: each for each in (FEATURE_PATHS, FIRST_LAYER, GROUPS, ORDER)}
"""By their names in a job."""
