"""OGB's node- and link-property sets, from the raw files of their folders; the `ogb` package is not needed.

`dataset` puts the graph together; `layouts` reads the four layouts, `splits` what is for training and what for
evaluation, `links` the edges of link sets, `tables` single files.
"""

from penstock.graph.convert.ogb.dataset import from_ogb, is_ogb_folder

__all__ = ["from_ogb", "is_ogb_folder"]
