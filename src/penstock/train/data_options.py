"""The job fields that say what is learned, and from which graph."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.graph.documents import StrictDocument, split_commas

Task = Literal[
    "node-classification",
    "node-regression",
    "link-prediction",
    "edge-classification",
    "edge-regression",
    "knowledge-graph-completion",
]


class DataOptions(StrictDocument):
    """The graph, and what is learned from it."""

    graph: str = Field("synthetic-arxiv", description="a graph folder, or anything `ps.load` recognises")
    task: Literal["auto", Task] = Field("auto", description="what is learned; auto: from the labels and held-out edges")
    node_type: str | None = Field(None, description="node tasks: the type with labels; needed if several have any")
    edge_type: str | None = Field(None, description="edge tasks: source__relation__destination; needed if several")
    features: str = Field("x", description="vertex field with features; types without it get learnable embeddings")
    edge_features: Annotated[list[str], BeforeValidator(split_commas)] = Field(
        [],
        description="edge fields that gatv2, gine, transformer or a module of your own reads (as `edge_attr`); auto:"
        " the only one that can be meant (docs/edges.md)",
    )
    label: str = Field("y", description="vertex or edge field with labels")
    split: Literal["auto", "graph", "ratio", "per-class"] = Field(
        "auto", description="where training vertices come from; auto: the graph's splits, else by ratio"
    )
    split_number: int = Field(0, ge=0, description="which of several given splits an archive has")
    split_ratio: Annotated[list[float], BeforeValidator(split_commas)] = Field(
        [0.6, 0.2, 0.2], min_length=3, max_length=3, description="shares of train, val and test"
    )
    per_class: Annotated[list[int], BeforeValidator(split_commas)] = Field(
        [20, 30], min_length=2, max_length=2, description="training and validation vertices of each class; rest: test"
    )
    scale_features: Literal["none", "rows"] = Field(
        "none", description="rows: divide each vertex's features by their sum"
    )
    max_classes: int = Field(10_000, ge=2, description="largest number of classes, or of labels per vertex")
    unchecked: bool = Field(
        False, description="do not check the graph's arrays before they are used; a wrong number may crash the run"
    )
    reverse_edges: bool = Field(False, description="add every relation's reverse as a relation of its own")
    largest_component: bool = Field(
        False, description="labels count in the largest connected component only (graphs with one type)"
    )
    train_on_validation: bool = Field(
        False, description="train on the graph's validation vertices too: nothing is validated, the last epoch counts"
    )
