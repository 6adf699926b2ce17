"""What training on the whole graph needs of a cluster (`train.whole.shared.interfaces`), over the run's own wire.

`cut_lists` reads the cut graph, `list_exchange` exchanges lists while a plan is made, `row_mail` carries rows and their
gradients from worker to worker, and `workers` joins them.
"""
