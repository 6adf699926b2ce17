"""What PyG and others call the fields of a job, for those who write the names that they know."""

OTHER_NAMES: dict[str, str] = {
    "num_neighbors": "fanouts",
    "num_workers": "sample_threads",
    "neg_sampling_ratio": "negatives_per_edge",
    "neg_sampling": "negatives",
    "time_attr": "time",
    "edge_label_time": "seed_time",
    "weight_attr": "weight",
    "hidden_channels": "hidden",
    "hidden_dim": "hidden",
    "num_layers": "layers",
    "num_heads": "heads",
    "num_bases": "bases",
    "num_blocks": "blocks",
    "aggr": "aggregate",
    "act": "activation",
    "jk": "jump",
    "edge_dim": "edge_features",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "learning_rate": "lr",
    "optimizer": "optimiser",
    "scheduler": "schedule",
    "early_stopping": "patience",
}
"""A name that no field has, and the field that is meant."""
