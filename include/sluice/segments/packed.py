"""Small data files of a batch, packed into the file of the manifest that lists them.

A manifest is JSON and has no NUL byte. The data files follow the first NUL, and the manifest lists each by its address
``path#start-size``: a part of a file. :class:`~sluice.segments.store.SegmentStore` reads an address as it reads a path,
so the readers need not know the difference. A batch of a few rows had two files per table and two manifests. Now it has
two files, and each is there as a whole or not at all.

The parts are Parquet files, as the large ones are, and not rows as JSON: one format for both. A tool without Sluice
cannot open them by a path. So segments are packed only where a batch has more small tables than
``capture.segments.small_files``; changesets, which no one but the load reads, are packed as far as they are small.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sluice.segments.sealed import sealed

SMALL_BYTES = 2**20
"""Rows that take so much memory, at most, are packed: the smallest tables of a batch first."""

_ADDRESS = re.compile(r"(.+)#(\d{10})-(\d{10})", re.DOTALL)


def address(path: str, start: int, size: int) -> str:
    """Return the address of a part of a file. It has the same length for every part."""
    return f"{path}#{start:010d}-{size:010d}"


def parted(path: str) -> tuple[str, int, int] | None:
    """Parse an address to (path of the file, start, size); None for the path of a whole file."""
    match = _ADDRESS.fullmatch(path)
    return (match[1], int(match[2]), int(match[3])) if match else None


def file_of(path: str) -> str:
    """Return the path of the file that ``path`` is, or is a part of."""
    return (parted(path) or (path,))[0]


def copy_path(path: str, table_folder: str) -> str:
    """Return where a copy of a data file is kept, below the folder of the copies.

    ``table_folder`` is used for a packed file, which has no folder of its own.
    """
    name = path.split("/", 1)[1]
    return name if parted(path) is None else f"{table_folder}/{name.replace('#', '-')}.parquet"


def fitting(sizes: Sequence[int], most: int = SMALL_BYTES) -> frozenset[int]:
    """Return the indexes of the smallest of ``sizes``: as many as together are not more than ``most``."""
    indexes, total = [], 0
    for index in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        total += sizes[index]
        if total > most:
            break
        indexes.append(index)
    return frozenset(indexes)


def packed(path: str, manifest: Callable[[Sequence[str]], str], parts: Sequence[bytes]) -> tuple[bytes, list[str]]:
    """Return the contents of the file ``path``, and the addresses of ``parts`` in it.

    ``manifest`` returns the text that lists parts at given addresses; it is stored with its checksum.
    """

    def text(places: Sequence[str]) -> bytes:
        return sealed(manifest(places)).encode()

    if not parts:
        return text(()), []
    start = len(text([address(path, 0, len(part)) for part in parts])) + 1
    places = []
    for part in parts:
        places.append(address(path, start, len(part)))
        start += len(part)
    return b"\0".join([text(places), b"".join(parts)]), places
