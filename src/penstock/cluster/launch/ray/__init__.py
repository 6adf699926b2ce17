"""Tasks on the nodes of a Ray cluster.

Ray places and watches; it runs none of our code but a *keeper*: an actor that starts a task's process on its node, as
everywhere else, and tells how it ended. `nodes` says which node is which machine, `shares` what of it a task asks for,
`cluster` is all that is asked of Ray, `keeper` the actor, `task` a task's way from node to node, `launcher` the whole.
"""
