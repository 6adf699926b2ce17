"""What computations run on, as documents and numbers: machines, their devices, and the links between them.

`cluster` is the document that lists machines and how a run is spread over them. `machines` is what of it decides speed
and room, the kind of device that workers compute on, and the links that flows cross. Nothing here starts, measures or
decides anything else.
"""
