"""Row operations as the decoder numbers them."""

from __future__ import annotations

OP_INSERT, OP_UPDATE, OP_DELETE = 0, 1, 2
