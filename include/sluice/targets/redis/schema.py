"""Whether each planned table has its definition, what the types of columns lose, and what the server keeps over a
crash.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.errors import LoadError, MappingError, SluiceError
from sluice.model.planned import PlannedTable
from sluice.targets.feature_check import without_key
from sluice.targets.messages.row_texts import own_type
from sluice.targets.port import Input, TableFinding, about_values
from sluice.targets.redis.client import MADE_ANEW, Client, cluster_refused, connected
from sluice.targets.redis.place import Place
from sluice.targets.redis.scripts import LOST
from sluice.targets.redis.tables import Definition, definition_of, definitions, require, statement_of
from sluice.targets.schema.names import lacking

_EXACT = 2**53


@dataclass(frozen=True)
class RedisSchema:
    """See :class:`sluice.targets.port.TargetSchema`."""

    place: Place
    input: Input

    def compare(self, tables: Sequence[PlannedTable]) -> Sequence[TableFinding]:
        """Return findings on the server, once, and on each table."""
        if not tables:
            return ()
        first = tables[0].target
        with connected(self.place) as client:
            findings = [
                TableFinding(severity, first, "", why, hint=hint)
                for severity, why, hint in server_findings(client, self.place)
            ]
            try:
                held_definitions = definitions(client, self.place) if self.input is Input.MERGED else {}
                streams = {self.place.stream_of(plan.target) for plan in tables if self.input is Input.CHANGES}
                lost = {stream: self._why_lost(client, stream) for stream in streams}
            except SluiceError as error:
                return [*findings, TableFinding("error", first, "", error.message, hint=error.hint or "")]
        for plan in tables:
            if self.input is Input.MERGED:
                findings += self._about(plan, held_definitions)
            elif lost[stream := self.place.stream_of(plan.target)]:
                forgets = shlex.join(["HDEL", self.place.checkpoint_key, f"stream:{stream}"])
                why = f"the stream {stream} {lost[stream]}"
                findings.append(TableFinding("error", plan.target, "", why, forgets, MADE_ANEW, absent=True))
            else:
                findings.append(
                    TableFinding(
                        "ok",
                        plan.target,
                        "",
                        f"stream {self.place.stream_of(plan.target)}, {self.place.options.format}",
                    )
                )
        return findings

    def _why_lost(self, client: Client, stream: str) -> str:
        return bytes(client.run(LOST, [self.place.checkpoint_key, stream], [])).decode()

    def _about(self, plan: PlannedTable, held_definitions: Mapping[str, Definition]) -> Iterator[TableFinding]:
        place, definition = self.place, held_definitions.get(str(plan.target))
        if not plan.key:
            yield without_key(plan)
            return
        new = lacking(plan, definition.columns) if definition is not None else []
        for name in new:
            assert definition is not None
            statement = statement_of(place, plan.target, replace(definition, columns=(*definition.columns, *new)))
            why = f"it has no column {name!r}, which {plan.source} has"
            yield TableFinding("error", plan.target, name, why, statement, absent=True)
        if new:
            return
        try:
            require(place, held_definitions, plan)
        except MappingError as error:
            statement = statement_of(place, plan.target, definition_of(plan)) if definition is None else ""
            yield TableFinding(
                "error", plan.target, "", error.message, statement, hint=error.hint or "", absent=definition is None
            )
            return
        yield from self._losses(plan)
        head, tail = place.row_affixes(plan.target)
        yield TableFinding(
            "ok",
            plan.target,
            "",
            f"keys {head}{':'.join(f'<{name}>' for name in plan.key)}{tail}, form: {place.options.form}",
        )

    def _losses(self, plan: PlannedTable) -> Iterator[TableFinding]:
        options = self.place.options
        if options.form == "string":
            remaining_names = [
                column.name for column in plan.columns if column.name != options.value_column and not column.key
            ]
            if remaining_names:
                yield TableFinding(
                    "warning",
                    plan.target,
                    "",
                    f"form: string stores {options.value_column} alone, without {', '.join(remaining_names)}",
                )
            return
        for column in plan.columns:
            loses = own_type(column.sent_type).loses
            if loses:
                yield about_values(plan.target, column.name, column.sql_type, loses)
        scores = {index.score for index in self.place.indexes_of(plan.target)}
        for column in plan.columns:
            if column.name in scores and column.sent_type.kind.value in {"bigint", "decimal"}:
                why = f"{column.sql_type}: a score is a double, which orders numbers beyond {_EXACT:,} alike"
                yield TableFinding("warning", plan.target, column.name, why)

    def apply(self, statement: str) -> None:
        """Store a definition, or forget a stream, so that a load makes it anew. Raises LoadError."""
        words = shlex.split(statement)
        if words[:2] == ["HDEL", self.place.checkpoint_key] and words[2:] and words[2].startswith("stream:"):
            with connected(self.place) as client:
                if client.run(LOST, [self.place.checkpoint_key, words[2].removeprefix("stream:")], []):
                    client.ask("forgetting a stream", *words[:3])
            return
        try:
            if len(words) != 4 or words[:2] != ["HSET", self.place.tables_key]:
                raise ValueError("it stores no definition")
            Definition.from_text(words[3])
        except (ValueError, KeyError, TypeError) as error:
            raise LoadError(f"this is no statement of a Redis target: {statement[:300]}: {error}") from None
        with connected(self.place) as client:
            client.ask("storing a definition", *words)


def server_findings(client: Client, place: Place) -> Iterator[tuple[str, str, str]]:
    """Yield (severity, what, hint) of what the server's settings mean for rows and checkpoint."""
    try:
        info = client.info()
    except SluiceError as error:
        yield "error", error.message, error.hint or ""
        return
    if info.get("cluster_enabled") == "1":
        refused = cluster_refused(place.endpoint)
        yield "error", refused.message, refused.hint or ""
    if info.get("role") in {"slave", "replica"}:
        yield "error", "the server is a replica, which takes no writes", "name the primary in the connection"
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys"):
        yield (
            "error",
            f"maxmemory-policy {policy}: a full server removes any key, the checkpoint too, and says nothing",
            "CONFIG SET maxmemory-policy noeviction",
        )
    elif policy.startswith("volatile") and place.options.expire is not None:
        yield "warning", f"maxmemory-policy {policy}: a full server removes rows before their time, as they expire", ""
    yield from _durability(client, place, info)


def _durability(client: Client, place: Place, info: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    logs = info.get("aof_enabled") == "1"
    sync, save = client.configured("appendfsync"), client.configured("save")
    behind = (
        f"then the checkpoint is behind, too: `sluice recover {place.pipeline}` delivers again what is still stored"
    )
    if place.options.fsync and not (logs and _waits_for_log(client)):
        why = "options.fsync waits for the server's log, and it " + (
            "does not know WAITAOF" if logs else "keeps none (appendonly no)"
        )
        yield "error", why, "Redis 7.2 or Valkey with appendonly yes; or leave fsync out"
    elif place.options.fsync and sync == "no":
        yield (
            "error",
            "options.fsync, and appendfsync no: the server never waits for its disk",
            "set appendfsync everysec",
        )
    if not logs and save == "":
        yield (
            "warning",
            f"appendonly no and no save: a crash or a restart of the server loses every row; {behind}",
            "set appendonly yes",
        )
    elif not logs:
        words = f"save {save!r}" if save is not None else "its snapshots"
        why = f"appendonly no: a crash of the server loses what was written since the last of {words}; {behind}"
        yield "warning", why, "set appendonly yes"
    elif sync == "no":
        yield (
            "warning",
            f"appendfsync no: a crash of the machine loses what the kernel had not written yet; {behind}",
            "set appendfsync everysec",
        )
    elif sync == "always":
        yield "ok", "appendonly yes, appendfsync always: a crash loses nothing that was acknowledged", ""
    else:
        sync_note = f"appendfsync {sync}" if sync else "appendfsync is not told"
        yield "ok", f"appendonly yes, {sync_note}: a crash of the machine loses about the last second; {behind}", ""


def _waits_for_log(client: Client) -> bool:
    try:
        client.ask("asking for WAITAOF", "WAITAOF", 0, 0, 1)
    except LoadError:
        return False
    return True
