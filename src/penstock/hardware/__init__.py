"""The hardware that computations run on, as documents and numbers: machines, their devices, and their links.

`cluster` is the document that lists machines and how a run is spread over them. `machines` holds what a plan uses of
it: speed and capacity, the kind of device that workers compute on, and the links that flows cross. Nothing here starts
or measures anything.
"""
