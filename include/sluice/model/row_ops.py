"""Row operations as the decoder numbers them."""

from __future__ import annotations

from typing import Literal

OP_INSERT, OP_UPDATE, OP_DELETE = 0, 1, 2

Dumped = Literal["", "read", "cleared"]
"""What a dump has to do with merged rows: ``read``: it read them; ``cleared``: deletes of keys that it read and for
which the rules give nothing.
"""
