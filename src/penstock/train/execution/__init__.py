"""How a session is executed: by the host or a device, a step at a time or captured, alone or among workers.

`execution` says what an execution mode does for the loop, `support` declares what each can do and makes every refusal
from that declaration, and `registry` is the list of modes and chooses one for a session. `loaded` and `shared` are the
modes whose batches come through the pipeline; captured steps live with the device (`train.device`).
"""
