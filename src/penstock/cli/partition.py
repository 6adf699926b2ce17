"""`penstock partition`: cut a graph."""


def partition_command() -> None:
    """Cut a graph into parts."""
