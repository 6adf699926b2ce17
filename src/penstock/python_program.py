"""The one way in which Penstock starts Python programs as processes of their own."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def start_python(arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start this interpreter with `arguments`, such as ("-m", MODULE); `options` are those of subprocess.Popen.

    The working folder may hold anybody's files. With -P none of them stands in for a module that is installed; code of
    the user's own that lies there is found by its path (`nn.user_module`).
    """
    return subprocess.Popen([sys.executable, "-P", *arguments], **options)
