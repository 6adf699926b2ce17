"""Messages between the processes of a run: authenticated peers, typed messages with raw arrays, no pickle.

`message` is the form of what is sent, large messages in slices; `endpoint` is a process's end of the wire, `channel`
its calls to one peer, and `request_server` answers the calls of others. `egress` decides which message leaves next;
`transport/` is the authenticated and encrypted connection, with the keys that a launcher gives each task. `sockets` has
the TCP sockets and the thread that owns them, `coflows` measures how long transfers that belong together took, and
`options` are the cluster file's fields. What is sent, by whom and when, is decided elsewhere.
"""
