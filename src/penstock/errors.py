"""The error that is meant for a person: one sentence saying what, where and how to mend it."""


class PenstockError(Exception):
    """Bad input or an impossible request; `str()` is the whole message, shown without a traceback."""
