"""Tasks on the nodes of a job that torchrun or srun has started: every process of it runs the same command.

Process 0 becomes the controller and starts its own node's tasks. On every other node the first process becomes an
*agent*, which starts what the controller hands it; further processes of a node end at once, as tasks are processes of
their own. `place` reads the environment, `secret` makes keys of a secret that all processes share, `agent` is the one
side, `agents` and `launcher` are the other, `meeting_point` is how they find each other. `launcher` also decides
what a process becomes.
"""
