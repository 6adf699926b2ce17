"""The part of a job that steers tasks on edges."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.graph.documents import StrictDocument, split_commas


class LinkOptions(StrictDocument):
    """Fields of tasks on edges."""

    negatives: Literal["uniform", "in-batch", "joint"] = Field("uniform", description="links: how false ones are drawn")
    negatives_per_edge: int = Field(1, ge=1, description="links: false edges for every true one, or shared by a batch")
    filtered: bool = Field(True, description="links: never take a true edge for a false one")
    corrupt: Literal["destination", "source", "both"] = Field("destination", description="links: which end is replaced")
    scorer: Literal["dot", "distmult", "mlp"] = Field("dot", description="links: how two embeddings become a score")
    link_loss: Literal["bce", "softmax"] = Field("bce", description="links: each pair alone, or true against its false")
    rank_against: int = Field(100, ge=0, description="links: vertices a held-out edge is ranked among; 0: all")
    held_out: Annotated[list[float], BeforeValidator(split_commas)] = Field(
        [0.05, 0.1], min_length=2, max_length=2, description="links: val and test shares if the graph holds none out"
    )
