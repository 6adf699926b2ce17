"""Sampling a graph that was cut: the owner of a list draws from it, whoever asks stitches what the owners drew.

`owner` draws from the lists of one part, `service` does it for others. `split` is which owner has which row and how
their draws become one, `remote` the lists of a relation over all parts, and `graph` a sampler over those. Draws hash
original numbers and lists keep their order, so that batches are those of the uncut graph. `batches` has whole batches
drawn by tasks that do nothing else, `travelling` is their form on the wire and `requests` what is checked of a request.
"""

from penstock.sampling.parts.batches import RemoteSampler, serve_batches
from penstock.sampling.parts.graph import parted_sampler
from penstock.sampling.parts.owner import OwnedPart, PartLists
from penstock.sampling.parts.remote import PartedLists
from penstock.sampling.parts.service import serve_lists

__all__ = [
    "OwnedPart",
    "PartLists",
    "PartedLists",
    "RemoteSampler",
    "parted_sampler",
    "serve_batches",
    "serve_lists",
]
