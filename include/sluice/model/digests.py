"""Digests of a key range, which a server computes without sending the rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

import numpy as np

SHARED = "shared"
"""The first word of a list of words whose digests every kind of server computes alike."""
SHARED_LONG_BYTES = 1_000
"""The longest text that enters such a digest itself, in bytes; a hash stands for a longer one."""


def hashes_of_texts(texts: Iterable[bytes | memoryview]) -> np.ndarray[Any, Any]:
    """Return the hash of each text (uint64), as servers compute it: the first 64 bits of its SHA-256."""
    hashes = b"".join([sha256(text).digest()[:8] for text in texts])
    return np.frombuffer(hashes, ">u8").astype(np.uint64)


@dataclass(frozen=True, slots=True)
class RangeDigest:
    """Rows of a range, and a checksum of their values that does not depend on their order."""

    rows: int = 0
    checksum: int = 0

    @classmethod
    def of(cls, hashes: np.ndarray[Any, Any]) -> Self:
        """Return the digest of rows by their hashes (uint64)."""
        return cls(len(hashes), int(np.bitwise_xor.reduce(hashes, initial=np.uint64(0))))

    def plus(self, rows: Any, checksum: Any) -> RangeDigest:
        """Return the digest together with that of further rows, as a server answered it."""
        return RangeDigest(self.rows + int(rows), self.checksum ^ int(checksum))


def kind_and_words(kind: str, words: Iterable[str]) -> tuple[str, ...]:
    """Return a list of words: the kind of digest, and how each column enters it; empty if one column does not."""
    parts = tuple(words)
    return (kind, *parts) if all(parts) else ()
