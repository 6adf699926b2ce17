"""The files of a run: its folder, checkpoints, metrics and events, and tables of what a model gives. They import
nothing of training but the job."""
