"""What the host does of the first layer while it reads a batch's features, one file for each way.

`ways` is the list of them; a way says which jobs it is for and how batches then read their features.
"""
