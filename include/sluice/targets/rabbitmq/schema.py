"""Find what is missing of the queues, exchanges and streams of planned tables, and say what is promised."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sluice.errors import LoadError, SluiceError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.feature_check import without_key
from sluice.targets.port import Input, TableFinding
from sluice.targets.rabbitmq.checkpoint import CheckpointStream, StreamCheckpoints, why_lost
from sluice.targets.rabbitmq.client import connected
from sluice.targets.rabbitmq.place import Place
from sluice.targets.rabbitmq.sender import EXCHANGE_TYPE, QUEUE_TYPE, wanted
from sluice.targets.rabbitmq.stream_client import stream_connected

_DOING = "looking at what messages go to"


@dataclass(frozen=True)
class RabbitMQSchema:
    """See :class:`sluice.targets.port.TargetSchema`."""

    place: Place
    input: Input

    def compare(self, tables: Sequence[PlannedTable]) -> Sequence[TableFinding]:
        """Return findings on what is missing, and on where each table goes."""
        if not tables:
            return ()
        first = tables[0].target
        try:
            needed = wanted(self.place, [plan.target for plan in tables])
            missing, lost = self._missing(needed)
        except SluiceError as error:
            return [TableFinding("error", first, "", error.message, hint=error.hint or "")]
        findings = [
            TableFinding(
                "error",
                table or first,
                "",
                lost[name].message if name in lost else f"the {what} {name} is not there",
                statement(what, name) if (what, name) in missing else "",
                (lost[name].hint or "") if name in lost else "",
                absent=(what, name) in missing,
            )
            for (what, name), table in needed.items()
            if (what, name) in missing or name in lost
        ]
        return [*findings, *(finding for plan in tables for finding in self._about(plan, missing))]

    def _missing(
        self, needed: Mapping[tuple[str, str], TableId | None]
    ) -> tuple[set[tuple[str, str]], dict[str, LoadError]]:
        """Return what is not there of what is needed, and why streams lack what was sent, over one connection."""
        if self.place.options.streams:
            with stream_connected(self.place, _DOING) as streams:
                record, _ = CheckpointStream(streams, self.place).read()
                lost = {name: why_lost(streams, self.place, record, name) for _, name in needed}
                missing = {key for key in needed if not streams.exists(key[1])}
                return missing, {name: error for name, error in lost.items() if error is not None}
        with connected(self.place, _DOING) as client:
            return {key for key in needed if not client.exists(*key)}, {}

    def _about(self, plan: PlannedTable, missing: Collection[tuple[str, str]]) -> list[TableFinding]:
        if self.input is Input.MERGED and not plan.key:
            return [without_key(plan)]
        options, place, route = self.place.options, self.place, self.place.route_of(plan.target)
        if options.streams:
            what, name = "stream", route
            words = (
                f"stream {route}, {options.format}; exactly once: the server drops what publisher "
                f"{place.publisher()} sent before"
            )
        else:
            exchange = place.exchange_of(plan.target)
            what, name = ("exchange", exchange) if exchange else ("queue", route)
            way = f"exchange {exchange}, routing key {route}" if exchange else f"queue {route}"
            words = f"{way}, {options.format}; at least once: a repeat has the same message id"
        return [] if (what, name) in missing else [TableFinding("ok", plan.target, "", words)]

    def apply(self, statement: str) -> None:
        """Make a queue, exchange or stream. Raises LoadError."""
        words = shlex.split(statement)
        try:
            if words[:2] != ["rabbitmqadmin", "declare"]:
                raise ValueError("it declares nothing")
            arguments = dict(word.split("=", 1) for word in words[3:])
            what, name, kind = (
                words[2],
                arguments["name"],
                arguments["type"] if words[2] == "exchange" else arguments["queue_type"],
            )
        except (IndexError, KeyError, ValueError) as error:
            raise LoadError(f"this is no statement of a RabbitMQ target: {statement[:300]}") from error
        if kind == "stream":
            with stream_connected(self.place, "making what messages go to") as streams:
                streams.create(name)
            StreamCheckpoints(self.place).forget_stream(name)
            return
        with connected(self.place, "making what messages go to") as client:
            client.declare(what, name, kind)


def statement(what: str, name: str) -> str:
    """Return the command that makes a queue, exchange or stream."""
    if what == "exchange":
        return f"rabbitmqadmin declare exchange {shlex.quote(f'name={name}')} type={EXCHANGE_TYPE} durable=true"
    kind = "stream" if what == "stream" else QUEUE_TYPE
    return f"rabbitmqadmin declare queue {shlex.quote(f'name={name}')} queue_type={kind} durable=true"


__all__ = ["RabbitMQSchema", "statement"]
