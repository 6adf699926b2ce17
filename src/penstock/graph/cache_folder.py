"""The cache folder for what can be made again."""

import os
from pathlib import Path

from penstock.kernel_cache import home_folder


def cache_folder() -> Path:
    """PENSTOCK_CACHE, or `penstock` under the user's cache folder."""
    asked = os.environ.get("PENSTOCK_CACHE")
    if asked:
        return Path(asked)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else home_folder() / ".cache") / "penstock"
