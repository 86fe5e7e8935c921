"""GTIDs and commit times of the transactions scanned: the arrays that the scan kernel fills, and the executed set they
add up to.
"""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import DecodeError
from sluice.sources.mysql.decoder import scan_kernel as sc
from sluice.sources.mysql.decoder.rows import gtid_texts
from sluice.sources.mysql.decoder.table_slots import grown
from sluice.sources.mysql.events.control import TaggedGtid
from sluice.sources.mysql.events.gtids import GtidSet, MariaDbGtidState


class TransactionTable:
    """One entry a transaction met; ``s`` is the kernel's state, which counts them (S_TXNS begun, S_DONE_TXNS complete).

    Attributes:
        sid, gno, ts: index of the source id (-1: no GTID), number, commit time (microseconds since 1970) of each
            transaction.
        sids: uint8[n, 16], the source ids; MariaDB: domain and server, 4 bytes each.
    """

    def __init__(self, s: np.ndarray[Any, Any], gtid_set: str, *, mariadb: bool) -> None:
        self._s = s
        self._mariadb = mariadb
        self._tagged: dict[int, str] = {}
        self._harvested = 0
        self._executed: GtidSet | MariaDbGtidState = MariaDbGtidState(gtid_set) if mariadb else GtidSet(gtid_set)
        self.sid = np.empty(1 << 12, np.int64)
        self.gno = np.empty(1 << 12, np.int64)
        self.ts = np.empty(1 << 12, np.int64)
        self.sids = np.zeros((16, 16), np.uint8)
        self._forgotten: str | None = None

    # -- what it adds up to --------------------------------------------------------------------------------------------
    def executed(self) -> str:
        """Return everything executed up to the last complete transaction, as the server prints it."""
        self.harvest()
        return str(self._executed)

    def gtid_of(self, txn: int) -> str | None:
        """Return the GTID of a transaction, None if it has none."""
        sid = int(self.sid[txn])
        return None if sid < 0 else f"{self._names()[sid]}{'-' if self._mariadb else ':'}{int(self.gno[txn])}"

    def last_gtid(self) -> str | None:
        """Return the GTID of the last complete transaction, "" if it has none, None if no transaction was met."""
        complete = int(self._s[sc.S_DONE_TXNS])
        return (self.gtid_of(complete - 1) or "") if complete else self._forgotten

    def texts(self, first: int, last: int) -> pa.Array:
        """Return the GTIDs of the transactions ``first`` to ``last`` (not included)."""
        return gtid_texts(self._names(), self.sid[first:last], self.gno[first:last], "-" if self._mariadb else ":")

    def harvest(self) -> None:
        """Put the GTIDs of complete transactions into the executed set."""
        complete = int(self._s[sc.S_DONE_TXNS])
        if complete <= self._harvested:
            return
        sids, numbers = self.sid[self._harvested : complete], self.gno[self._harvested : complete]
        self._harvested = complete
        names = self._names()
        if isinstance(self._executed, MariaDbGtidState):
            last = {}
            for index, number in zip(sids.tolist(), numbers.tolist(), strict=True):
                if index >= 0:
                    domain, server = names[index].split("-")
                    last[int(domain)] = (int(domain), int(server), number)
            self._executed.see_all(last.values())
            return
        for index in range(max(int(sids.min()), 0), int(sids.max()) + 1):
            ordered = np.sort(numbers[sids == index])
            for run in np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1):
                if len(run):
                    self._executed.add(names[index], int(run[0]), int(run[-1]))

    def previous(self, body: bytes) -> None:
        """Process a previous-GTIDs event: all that was logged before its file.

        It completes a set that the capture began without knowing.
        """
        if self._executed or not isinstance(self._executed, GtidSet):
            return
        number_of_sids = int.from_bytes(body[:8], "little")
        if number_of_sids >> 56:  # the form with tags: the set is known from the server then
            return
        at = 8
        for _ in range(number_of_sids):
            source = str(uuid.UUID(bytes=body[at : at + 16]))
            intervals = int.from_bytes(body[at + 16 : at + 24], "little")
            at += 24
            if intervals * 16 > len(body) - at:
                raise DecodeError("a previous GTIDs event ends too early")
            for _ in range(intervals):
                low, high = (int.from_bytes(body[i : i + 8], "little") for i in (at, at + 8))
                self._executed.add(source, low, high - 1)
                at += 16

    # -- entries that the kernel leaves to Python ----------------------------------------------------------------------
    def begin_tagged(self, gtid: TaggedGtid) -> None:
        """Begin a transaction with a tagged GTID."""
        index = next((i for i, name in self._tagged.items() if name == gtid.source), None)
        if index is None:
            index = self._add_source(uuid.uuid5(uuid.NAMESPACE_OID, gtid.source).bytes)
            self._tagged[index] = gtid.source
        self._begin(index, gtid.number, gtid.commit_us)

    def begin_mariadb(self, domain: int, server: int, number: int, commit_us: int) -> None:
        """Begin a MariaDB transaction."""
        key = domain.to_bytes(4, "little") + server.to_bytes(4, "little") + bytes(8)
        known_sids = self.sids[: int(self._s[sc.S_SIDS])]
        same = np.flatnonzero((known_sids == np.frombuffer(key, np.uint8)).all(axis=1))
        self._begin(int(same[0]) if len(same) else self._add_source(key), number, commit_us)

    def begin_anonymous(self, commit_us: int) -> None:
        """Begin a transaction without a GTID."""
        self._begin(-1, 0, commit_us)
        self._s[sc.S_HAS_GTID] = 0

    def _begin(self, sid: int, number: int, commit_us: int) -> None:
        s = self._s
        t = int(s[sc.S_TXNS])
        if t >= len(self.gno):
            self.grow()
        self.sid[t], self.gno[t], self.ts[t] = sid, number, commit_us
        s[sc.S_TS] = commit_us
        s[sc.S_TXNS] = t + 1
        s[sc.S_HAS_GTID] = 1

    def _add_source(self, key: bytes) -> int:
        index = int(self._s[sc.S_SIDS])
        if index >= len(self.sids):
            self.grow_sources()
        self.sids[index] = np.frombuffer(key, np.uint8)
        self._s[sc.S_SIDS] += 1
        return index

    # -- room ----------------------------------------------------------------------------------------------------------
    def grow(self) -> None:
        """Double the room for transactions."""
        self.sid, self.gno, self.ts = grown(self.sid), grown(self.gno), grown(self.ts)

    def grow_sources(self) -> None:
        """Double the room for source ids."""
        self.sids = np.concatenate([self.sids, np.zeros_like(self.sids)])

    def forget(self) -> None:
        """Start anew at entry 0; nothing captured may refer to the entries."""
        self.harvest()
        self._forgotten = self.last_gtid()
        self._s[sc.S_TXNS] = self._s[sc.S_DONE_TXNS] = self._harvested = 0

    def _names(self) -> list[str]:
        names = []
        for i in range(int(self._s[sc.S_SIDS])):
            raw = self.sids[i].tobytes()
            if i in self._tagged:
                names.append(self._tagged[i])
            elif self._mariadb:
                names.append(f"{int.from_bytes(raw[:4], 'little')}-{int.from_bytes(raw[4:8], 'little')}")
            else:
                names.append(str(uuid.UUID(bytes=raw)))
        return names
