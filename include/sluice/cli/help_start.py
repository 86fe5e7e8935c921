"""Let help start fast: typer imports two modules of Rich for it that our help does not use, and that take longer than
all the rest.
"""

from __future__ import annotations

import sys
from types import ModuleType

_UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
"""Module -> the class that typer takes from it: for help in Markdown, and for errors that nobody foresaw."""


def leave_out_unused() -> None:
    """Put empty modules in the place of those that help does not use. Only for a process that prints help and ends."""
    for module, name in _UNUSED.items():
        if module not in sys.modules:
            empty = ModuleType(module)
            setattr(empty, name, type(name, (), {}))
            sys.modules[module] = empty
