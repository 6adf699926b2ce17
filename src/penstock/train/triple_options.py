"""The job fields of knowledge graph completion."""

from typing import Literal

from pydantic import Field

from penstock.graph.documents import StrictDocument


class TripleOptions(StrictDocument):
    """Fields of knowledge graph completion, beside those of links."""

    inverse_relations: bool = Field(
        False,
        description="learn a second vector for each relation, by which heads are looked for (reciprocal relations)",
    )
    negatives_power: float = Field(
        0.0, ge=0, le=2, description="draw negatives in proportion to degree to this power, such as 0.75; 0: uniformly"
    )
    negatives_group: int = Field(0, ge=0, description="joint negatives: positives that share them; 0: the whole batch")
    adversarial: float = Field(
        0.0, ge=0, description="temperature of self-adversarial weights of negatives; 0: all weigh the same"
    )
    margin: float = Field(
        9.0, ge=0, description="transe, rotate: a score is margin minus distance; and of link_loss margin"
    )
    distance: int = Field(1, ge=1, le=2, description="transe: the norm that measures distances, 1 or 2")
    triple_weights: Literal["none", "frequency"] = Field(
        "none",
        description="frequency: triples whose head or tail is common with its relation count less, by the root of how"
        " often it is (Sun et al., 2019)",
    )
    regulariser: Literal["none", "l2", "n3"] = Field(
        "none", description="sum of squares or cubes of the absolute values of a triple's embeddings"
    )
    regularisation: float = Field(0.0, ge=0, description="weight of the regulariser in the loss")
