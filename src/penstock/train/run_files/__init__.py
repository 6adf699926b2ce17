"""The files of a run: folder, checkpoints, metrics, events, and tables of what a model gives."""
