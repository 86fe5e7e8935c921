"""GTID sets as the server prints them: parse, add, print. MySQL's (also tagged) and MariaDB's."""

from __future__ import annotations

from collections.abc import Iterable


class GtidSet:
    """A MySQL GTID set: intervals by source id (``uuid`` or ``uuid:tag``). Mutable."""

    def __init__(self, text: str = "") -> None:
        self._intervals: dict[str, list[tuple[int, int]]] = {}
        for part in filter(None, (p.strip() for p in text.replace("\n", "").split(","))):
            pieces = part.split(":")
            source = uuid = pieces[0].strip().lower()
            for piece in pieces[1:]:
                piece = piece.strip()
                if piece[:1].isdigit():
                    low, _, high = piece.partition("-")
                    self.add(source, int(low), int(high or low))
                else:
                    source = f"{uuid}:{piece.lower()}"

    def add(self, source: str, low: int, high: int) -> None:
        """Add the numbers ``low`` to ``high``, both included."""
        merged: list[tuple[int, int]] = []
        for a, b in self._intervals.get(source, []):
            if b + 1 < low or high + 1 < a:
                merged.append((a, b))
            else:
                low, high = min(low, a), max(high, b)
        merged.append((low, high))
        merged.sort()
        self._intervals[source] = merged

    def update(self, other: GtidSet) -> None:
        """Add all of another set."""
        for source, intervals in other._intervals.items():
            for low, high in intervals:
                self.add(source, low, high)

    def contains(self, other: GtidSet) -> bool:
        """Return True if every GTID of ``other`` is in this set."""
        for source, intervals in other._intervals.items():
            own_interval = self._intervals.get(source, [])
            if not all(any(a <= low and high <= b for a, b in own_interval) for low, high in intervals):
                return False
        return True

    def __bool__(self) -> bool:
        return bool(self._intervals)

    def __str__(self) -> str:
        by_uuid: dict[str, list[str]] = {}
        for source in sorted(self._intervals):
            uuid, _, tag = source.partition(":")
            texts = [str(a) if a == b else f"{a}-{b}" for a, b in self._intervals[source]]
            by_uuid.setdefault(uuid, []).append(":".join([tag, *texts] if tag else texts))
        return ",".join(f"{uuid}:{':'.join(parts)}" for uuid, parts in by_uuid.items())


class MariaDbGtidState:
    """MariaDB's position: the last GTID of each domain, ``0-1-42,1-2-7``. Mutable."""

    def __init__(self, text: str = "") -> None:
        self._last: dict[int, tuple[int, int]] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            domain, server, number = (int(piece) for piece in part.split("-"))
            self._last[domain] = (server, number)

    def see(self, domain: int, server: int, number: int) -> None:
        """Add an executed transaction."""
        self._last[domain] = (server, number)

    def see_all(self, items: Iterable[tuple[int, int, int]]) -> None:
        """Add several executed transactions, in order."""
        for domain, server, number in items:
            self.see(domain, server, number)

    def update(self, later: MariaDbGtidState) -> None:
        """Update the domains from a later position."""
        self._last.update(later._last)

    def reaches(self, other: MariaDbGtidState) -> bool:
        """Return True if this position is at or after the other one in each of its domains."""
        return all(d in self._last and self._last[d][1] >= number for d, (_, number) in other._last.items())

    def of(self, domain: int) -> str:
        """Return the last GTID of a domain, "" if it has none."""
        last = self._last.get(domain)
        return f"{domain}-{last[0]}-{last[1]}" if last else ""

    def items(self) -> list[tuple[int, str]]:
        """Return (domain, its last GTID), by domain."""
        return [(domain, self.of(domain)) for domain in sorted(self._last)]

    def __bool__(self) -> bool:
        return bool(self._last)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self._last.items()))
