"""Conflicts of a two-way channel: rows that both sites changed before they had each other's change. Values only.

The log of the other site (not the main one) has the changes of both in one order: its own, and the main site's as they
were loaded. Two changes of a row, ``own`` and ``loaded``, were made at the same time if ``own`` stands before
``loaded`` in this log, and ``own`` was not at the main site yet when ``loaded`` was made there. Then the sites end with
each other's value. Otherwise they happened one after the other at both sites.

No clock says so. Each mark of a load says which batch the main site *had seen* when the first of the loaded changes was
made (its own log has the loads of the other pipeline among its changes). So of a loaded change those are sent back to
the main site, once, that follow a change of the same row which was sent in a batch that was not seen, or in this batch.
What is sent back is sent like any other change: what the main site writes before it arrives is in conflict with it in
turn. All others are left out.

Why both sites end equal. Say the last change of a row in the other site's log is sent: then the main site gets it last,
as whatever it wrote before has come before it. Say it is a load that is left out: then all that was sent of the row
before was at the main site when the change was made there, so that it is the last one there, too. The tests hold this
against every order of writes, batches, crashes and repeats.

Decision: in a table with a further unique key all loads are sent back. It is not enough to add the loads that met a
duplicate value to those in conflict by key. Say the other site gives a value to a row, a batch sends it, and the row
gives the value up again in a later batch. Then a row of the main site with that value meets no duplicate when it is
loaded, but the first of the two batches, which arrives at the main site after it, removes it there. In a model of two
sites, 103 of 4,000 random orders ended unequal. None of 30,000 did with the loads in conflict by key and each load that
is an insert, a delete, or a change of a unique value in the log: a row that kept its values had them already. That
would send back less, but MySQL logs a REPLACE of a row in such a table as a delete and an insert, which would have to
be told apart from others.

"Seen" may be said too low (a batch counts as seen when all of it is), never too high: more is sent back then than
needed. Keys are compared by a hash, and texts of a collation that takes several for equal by what they have in common:
two keys that are taken for one cost a row that is sent back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.hashing import PRIME, SEED, mix_values
from sluice.model.tables import TableId

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_MASK = 0xFFFFFFFFFFFFFFFF
_ANY, _ODD = 1, 2


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of changes of one table.

    Attributes:
        hashes: of each change. odd: keys that may equal keys of another hash.
        any_key, odd_key: what stands in a set of hashes for *some key*, and for *some odd key*, of the table.
    """

    hashes: Hashes
    odd: Mask
    any_key: int
    odd_key: int

    def chosen(self, mask: Mask) -> Hashes:
        """Return the hashes of the changes in ``mask``, sorted and unique: what a later batch has to know of them."""
        if not mask.any():
            return np.zeros(0, np.uint64)
        hashes = [self.hashes[mask], np.array([self.any_key], np.uint64)]
        if (self.odd & mask).any():
            hashes.append(np.array([self.odd_key], np.uint64))
        return np.unique(np.concatenate(hashes))


def keys_of(table: TableId, fields: Sequence[pa.Field], columns: Sequence[pa.Array]) -> Keys:
    """Return the keys of a table's changes.

    ``fields`` and ``columns`` are those of the key, in key order, as segments have them.
    """
    seed = SEED
    for byte in f"{table.schema}\x00{table.table}".encode():
        seed = ((seed ^ byte) * PRIME) & _MASK
    rows = len(columns[0])
    state, odd = np.full(rows, seed, np.uint64), np.zeros(rows, bool)
    for field, column in zip(fields, columns, strict=True):
        values, strange = _comparable(field, column)
        odd |= strange
        mix_values(state, values)
    marks = np.full(2, seed, np.uint64)
    mix_values(marks, pa.array([_ANY, _ODD], pa.int64()))
    mix_values(marks, pa.array(["some key", "some odd key"]))
    return Keys(state, odd, int(marks[0]), int(marks[1]))


def _comparable(field: pa.Field, column: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, Mask]:
    """Return values that are equal where the server's are, and a mask of those for which that is not known."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    collation = (field.metadata or {}).get(b"sluice.collation", b"").decode()
    if not pa.types.is_string(values.type) or not collation:
        return values, np.zeros(len(values), bool)
    text = pc.ascii_rtrim(values, " ")
    plain = pc.fill_null(pc.match_substring_regex(text, r"\A[\x20-\x7e]*\z"), True).to_numpy(zero_copy_only=False)
    if collation.endswith("_bin"):
        return text, np.zeros(len(values), bool)
    return pc.if_else(pa.array(plain), pc.ascii_lower(text), pa.scalar("")), ~plain


def sent_changes(keys: Keys, order: npt.NDArray[Any], loaded: Mask, unseen: Hashes | None) -> Mask:
    """Return a mask of the changes that are sent: all that the site made, and the loaded ones that are in conflict.

    Args:
        order: place of each change in the log. loaded: by the partner.
        unseen: sorted; what was sent in earlier batches that the main site had not seen (:meth:`Keys.chosen`). None:
            not known, everything may be.
    """
    if unseen is None or not loaded.any():
        return np.ones(len(loaded), bool)
    met = loaded & _among(keys, unseen)
    begun = ~loaded | met
    if not begun.any():
        return begun
    _, codes = np.unique(keys.hashes, return_inverse=True)
    places = order.astype(np.int64)
    last = np.iinfo(np.int64).max
    first = np.full(int(codes.max()) + 1, last, np.int64)
    np.minimum.at(first, codes[begun], places[begun])
    earliest = int(places[begun].min())
    odd_from = int(places[begun & keys.odd].min()) if (begun & keys.odd).any() else last
    since = np.minimum(first[codes], odd_from)
    since = np.where(keys.odd, np.minimum(since, earliest), since)
    sent: Mask = ~loaded | (places >= since)
    return sent


def _among(keys: Keys, unseen: Hashes) -> Mask:
    """Return a mask of the keys that may be in the set ``unseen``."""
    possible = np.isin(keys.hashes, unseen)
    if np.isin(np.uint64(keys.odd_key), unseen):
        return np.ones(len(possible), bool)
    if np.isin(np.uint64(keys.any_key), unseen):
        possible |= keys.odd
    return possible
