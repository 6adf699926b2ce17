"""The data that a job learns from: `prepared_graph` opens the graph and chooses the task, `labels` finds the labels of
vertices, `inputs` holds the rows that the model reads, and `notes` tells the user what may mislead."""
