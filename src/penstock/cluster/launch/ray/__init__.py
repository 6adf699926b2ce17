"""Tasks on the nodes of a Ray cluster.

Ray places and watches; it runs none of our code but one actor for each task, which starts the task's process on its
node, as everywhere else, and tells how it ended. `nodes` says which node is which machine and what of it a task asks
for, `cluster` is all that is asked of Ray, `task_actor` the actor, `task` a task's way from node to node, `launcher`
the whole.
"""
