"""Is a target table complete up to a time? What a run, a trigger and the command line ask.

A table may be written by several pipelines: it is complete once each of them has delivered all that its own source
committed before the time. See :mod:`sluice.model.completeness` for the rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from sluice.errors import ConfigError, SegmentError, StorageUnavailable
from sluice.flows.dump.start import captured_tables
from sluice.flows.dump.table_list import PATH as CAPTURED
from sluice.flows.runtime import Runtime
from sluice.mapping.tables import Mapping as Routes
from sluice.model.completeness import Settled, held_position, is_complete
from sluice.model.tables import TableId
from sluice.operations.asset_events import uri_of
from sluice.operations.deadletters.store import letters
from sluice.sources import executed


def complete_uri(uri: str) -> str:
    """Return the address of the asset that tells of complete times, for the address of a table."""
    return f"complete+{uri}"


@dataclass(frozen=True, slots=True)
class TableState:
    """A target table: its address, its source tables, and why it is not complete ("": it is).

    ``is_blocked``: it will not be by waiting for the log: a copy of it runs, or it lacks rows.
    """

    uri: str
    sources: tuple[str, ...]
    why: str = ""
    is_blocked: bool = False


@dataclass
class Writer:
    """One target of one pipeline, and what it writes."""

    runtime: Runtime
    target: str
    settled: Settled | None = None
    position: str = ""
    transactions: str = ""
    _tables: dict[str, list[TableId]] = field(default_factory=dict)

    @cached_property
    def _address(self) -> Callable[[TableId], str]:
        opened = self.runtime.open_target(self.target)
        endpoint = self.runtime.resolver(opened.config.connection)
        return lambda table: uri_of(opened.config.type, endpoint, opened, table)

    def tables_of(self, captured: Iterable[TableId]) -> dict[str, list[TableId]]:
        """Return the target's tables by address, each with its source tables."""
        routes, tables = Routes.of(self.runtime.pipeline), dict[str, list[TableId]]()
        for source in captured:
            tables.setdefault(self._address(routes.route(source).target), []).append(source)
        return tables

    def stored_tables(self) -> dict[str, list[TableId]]:
        """Return :meth:`tables_of` the list that the capture stored last; empty if there is none."""
        try:
            names = json.loads(self.runtime.store.read_bytes(CAPTURED))
        except (SegmentError, StorageUnavailable, ValueError):
            return {}
        return self.tables_of(TableId(*name.split(".", 1)) for name in names)

    def look(self, until_us: int) -> dict[str, TableState]:
        """Return the state of each table, by address. Raises SluiceError."""
        if self.settled is None or self.settled.time_us < until_us or not self._tables:
            with self.runtime.source.open() as source:
                self.settled = source.settled()
                if self.settled.time_us >= until_us:  # tables that came before this time are in the list
                    self._tables = self.tables_of(captured_tables(self.runtime.pipeline, source))
        if not self._tables:
            self._tables = self.stored_tables()
        why = self._why_not(until_us)
        if why:
            return self._each(lambda _: (why, False))
        blocked = self._blocked()
        return self._each(
            lambda sources: next(((blocked[source], True) for source in sources if source in blocked), ("", False))
        )

    def _each(self, why: Callable[[Sequence[TableId]], tuple[str, bool]]) -> dict[str, TableState]:
        name = f"{self.runtime.name}.{self.target}"
        states = {}
        for uri, sources in self._tables.items():
            text, is_blocked = why(sources)
            states[uri] = TableState(uri, tuple(map(str, sources)), f"{name}: {text}" if text else "", is_blocked)
        return states

    def _why_not(self, until_us: int) -> str:
        """Return why the target does not hold the settled position; "" if it does."""
        assert self.settled is not None
        with self.runtime.state() as state:
            cursor = state.cursor()  # before the acknowledgement, see held_position
            acknowledged = state.acks.get(self.target)
        if cursor is None or acknowledged is None:
            return "it has not begun"
        held_offset = held_position(cursor.position, cursor.next_batch, acknowledged.position, acknowledged.batch)
        self.position = str(held_offset)
        with suppress(ConfigError):
            self.transactions = executed(self.runtime.pipeline.source.type, held_offset)
        if is_complete(until_us, self.settled, held_offset):
            return ""
        if self.settled.time_us < until_us:
            return "the source is still committing what began before"
        if self.settled.at.log_epoch != held_offset.log_epoch:
            self.settled = None
            return "the source is another server now"
        return f"it is at {held_offset}, and has to reach {self.settled.at}"

    def _blocked(self) -> Mapping[TableId, str]:
        """Return the source tables whose rows are not all at the target, each with the reason."""
        reasons: dict[TableId, str] = {}
        with self.runtime.state() as state:
            for dump in state.dumps.active():
                if not dump.targets or self.target in dump.targets:
                    reasons |= {request.table: f"a copy of it runs ({dump.id})" for request in dump.tables}
            for incomplete in state.incomplete.all():
                if incomplete.target == self.target:
                    reasons[incomplete.source] = "it may lack rows, see `sluice status`"
        for letter in letters(self.runtime):
            if self.target in letter.waiting and "." in letter.table:
                reasons[TableId(*letter.table.split(".", 1))] = "it has dead letters"
        return reasons


@dataclass
class TableWatch:
    """The tables of one target of a pipeline, and whoever else writes them.

    ``others``: runtimes of the other pipelines.
    """

    writer: Writer
    until_us: int
    others: Sequence[Runtime] = ()

    @cached_property
    def _rivals(self) -> list[Writer]:
        """The targets of other pipelines that write one of these tables."""
        own_runtime = self.writer.runtime
        named = [
            (own_runtime, target.name) for target in own_runtime.pipeline.targets if target.name != self.writer.target
        ]
        named += [(runtime, target.name) for runtime in self.others for target in runtime.pipeline.targets]
        tables = set(self.writer.stored_tables())
        rivals = []
        for runtime, target in named:
            rival = Writer(runtime, target)
            if tables & set(rival.stored_tables()):
                rivals.append(rival)
        return rivals

    @property
    def is_settled(self) -> bool:
        """True once the last look found that nothing earlier comes any more at the source."""
        return self.writer.settled is not None and self.writer.settled.time_us >= self.until_us

    def look(self) -> dict[str, TableState]:
        """Return the state of each table of the target, by address. Raises SluiceError."""
        states = self.writer.look(self.until_us)
        if all(state.why and not state.is_blocked for state in states.values()):
            return states
        for rival in self._rivals:
            if not states.keys() & rival.stored_tables().keys():
                continue
            for uri, state in rival.look(self.until_us).items():
                own_state = states.get(uri)
                if own_state is not None and not own_state.why:
                    states[uri] = TableState(uri, (*own_state.sources, *state.sources), state.why, state.is_blocked)
        return states

    def details(self, state: TableState) -> dict[str, object]:
        """Return the ``extra`` of a table's event."""
        from datetime import UTC, datetime

        return {
            "table": state.uri,
            "until": datetime.fromtimestamp(self.until_us / 1e6, UTC).isoformat(),
            "pipeline": self.writer.runtime.name,
            "target": self.writer.target,
            "sources": sorted(set(state.sources)),
            "position": self.writer.position,
            "transactions": self.writer.transactions,
        }


def watch(runtime: Runtime, target: str, until_us: int, others: Sequence[Runtime] = ()) -> TableWatch:
    """Return what tells whether the tables of a target are complete up to a time."""
    return TableWatch(Writer(runtime, target), until_us, others)


def take(watch: TableWatch, states: Iterable[TableState], claim: str) -> list[TableState]:
    """Note which tables are complete. Return those of which ``claim`` has to tell."""
    with watch.writer.runtime.state() as state:
        return [table for table in states if not table.why and state.completions.take(table.uri, watch.until_us, claim)]


def confirm(runtime: Runtime, uris: Iterable[str], until_us: int, claim: str) -> None:
    """Note that the events of these tables are sent."""
    with runtime.state() as state:
        for uri in uris:
            state.completions.confirm(uri, until_us, claim)
