"""TCP connections between two tasks of a run that have authenticated each other by TLS 1.3.

`tls` holds the keys and certificates of a run and the settings of Python's `ssl`, and identifies the owner of a
certificate. `frames` is the layout of a message's frames on a connection, and writes and reads them; `stream` is an
authenticated connection and the thread that owns it. `connection` is one TCP connection from its handshake to its end,
and the listener that accepts connections, bounds how many there may be, and groups those of one channel. The content of
messages is not known here.
"""
