"""Tasks on the nodes of a job that torchrun or srun has started: every process of it runs the same command.

Process 0 becomes the controller and starts its own node's tasks. On every other node the first process becomes an
*agent*, which starts what the controller hands it; further processes of a node end at once, as tasks are processes of
their own. `place` reads the environment, `rendezvous` is how processes find and authenticate each other, `agent` holds
the agents and the controller's record of them. `launcher` decides what a process becomes, and starts tasks.
"""
