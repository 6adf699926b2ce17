"""The job fields of tasks on edges."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.graph.documents import StrictDocument, split_commas
from penstock.nn.scorer_table import ScorerName


class LinkOptions(StrictDocument):
    """Fields of tasks on edges."""

    negatives: Literal["uniform", "in-batch", "joint", "all"] = Field(
        "uniform", description="links: how negatives are drawn; all: every entity (knowledge graphs)"
    )
    negatives_per_edge: int = Field(1, ge=1, description="links: negatives for each positive, or shared by a batch")
    filtered: bool = Field(True, description="links: never use a true edge as a negative")
    corrupt: Literal["destination", "source", "both"] = Field("destination", description="links: which end is replaced")
    scorer: ScorerName = Field(
        "auto", description="links: how two embeddings become a score; auto: dot, and complex for knowledge graphs"
    )
    link_loss: Literal["bce", "softmax", "margin"] = Field(
        "bce",
        description="links: each pair by itself (bce), a positive against its negatives (softmax), or above each by"
        " `margin` (margin; knowledge graphs)",
    )
    rank_against: int = Field(
        100, ge=0, description="links: number of vertices against which a held-out edge is ranked; 0: all"
    )
    supervision: float = Field(
        0.3,
        gt=0,
        le=1,
        description="whole: share of the training edges that a task on edges predicts; the others carry messages",
    )
    held_out: Annotated[list[float], BeforeValidator(split_commas)] = Field(
        [0.05, 0.1],
        min_length=2,
        max_length=2,
        description="links: validation and test shares, if the graph has no held-out edges",
    )
