"""check: everything that can be known to be wrong before the first batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog

from sluice.config import patterns
from sluice.config.channel import Channels
from sluice.config.connections import ConnectionResolver, unprotected
from sluice.config.credentials import KINDS, expires
from sluice.config.engine import RuleKind
from sluice.config.folders import channels_folder, pipelines_folder
from sluice.config.pipeline import SNAPSHOT, PipelineConfig, RowFiles
from sluice.coordination.incomplete import IncompleteTable
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, LoadError, LostPosition, PreflightError, SluiceError
from sluice.flows.capture.failover import relocated
from sluice.flows.checkpoints import CheckpointCheck
from sluice.flows.dump.automatic import missed_copy
from sluice.flows.dump.reconcile import kept_on_purpose, why_not
from sluice.flows.incomplete_tables import copy_command, note_absent, sentence
from sluice.flows.log_digests import source_refuses, target_refuses
from sluice.flows.mapped_names import known_tables, options_without_table
from sluice.flows.runtime import Runtime
from sluice.flows.snapshot.rows import noted_columns
from sluice.flows.snapshot.versions import snapshot_reader
from sluice.flows.transform.column_changes import NOT_BY_COLUMN, whole_rows
from sluice.flows.transform.made_columns import known_when_it_runs
from sluice.flows.transform.named_files import require_reachable
from sluice.flows.transform.stage_rules import StageRules
from sluice.mapping import Mapping
from sluice.mapping.names import misspelt_tables, tables_by_line, wrong_names
from sluice.merge.compact import merged_schema
from sluice.model.fields import key_columns
from sluice.model.findings import Finding
from sluice.model.load_marks import public_key
from sluice.model.nearest import meant
from sluice.model.offset import Offset
from sluice.model.rights import SETTING
from sluice.model.tables import TableId
from sluice.operations.alert_rules import notifier_class, notifier_names
from sluice.operations.channel import ends_of, members, ring, sent_to_itself
from sluice.operations.connection_probe import probe, target_rights, testable
from sluice.operations.copy_plan import PlannedCopy, planned_copies
from sluice.operations.server_questions import NoAnswer, Question, server_name, server_questions
from sluice.operations.stage_placement import placement_remarks
from sluice.operations.target_switch import server_lines
from sluice.operations.verify.digests import not_covered
from sluice.sources.port import Blindness, LogsPartialRows, PreparesSource, SourceSession, SourceTable
from sluice.sources.table_filter import Selection, key_left_out
from sluice.targets.port import Feature, NamesRisks, other_writers, refuses

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of ``sluice check``: findings line by line, and what would be copied where.

    ``at_source``: statements that would make what a capture needs at the source, in order.
    """

    findings: tuple[Finding, ...]
    copies: tuple[PlannedCopy, ...]
    at_source: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """True if something must be fixed before the first batch."""
        return any(finding.severity == "error" for finding in self.findings)

    @property
    def statements(self) -> list[tuple[str, str]]:
        """(target, DDL) that would make what is missing, in order, each once."""
        missing = [
            (copy.target, r.statement)
            for copy in self.copies
            for r in copy.remarks
            if r.severity == "error" and r.statement
        ]
        return list(dict.fromkeys(missing))

    def to_json(self) -> dict[str, Any]:
        """Return the report as commands print it."""
        return {
            "findings": [finding.to_json() for finding in self.findings],
            "tables": [copy.to_json() for copy in self.copies],
            "source_statements": list(self.at_source),
            "statements": [{"target": target, "statement": statement} for target, statement in self.statements],
        }


def _finding(severity: str, part: str, setting: str, value: str, why: str, fix: str = "") -> Finding:
    return Finding(severity, setting, value, why, fix, part=part)


def check(runtime: Runtime) -> CheckReport:
    """Check every part. A part that fails gives an error line, and the other parts are still checked."""
    pipeline = runtime.pipeline
    questions = [
        _Asked.begin(runtime, "zookeeper", runtime.keeper, pipeline.coordination.connection, _zookeeper),
        _Asked.begin(runtime, "source", "source", pipeline.source.servers[0], _source),
        _Asked.begin(runtime, "store", f"segment store {runtime.store_uri}", "", _store),
        *(
            _Asked.begin(
                runtime, f"target {target.name}", "target", target.connection, partial(_target, name=target.name)
            )
            for target in pipeline.targets
        ),
        *(
            _Asked.begin(runtime, "files", " or ".join(files.places), "", partial(_files, where=where, files=files))
            for where, files in _named_files(runtime.pipeline)
        ),
    ]
    findings = [
        _finding("ok", "pipeline", "file", runtime.name, "the file is valid"),
        *_guard("pipeline", lambda: _places(runtime)),
        *_guard("channel", lambda: _channel(runtime.name, runtime.resolver)),
        *_guard("alerts", lambda: _notifiers(pipeline)),
        *_unprotected(runtime),
    ]
    for question in questions[:3]:
        findings += question.findings()
    findings += _guard("rules", lambda: _rules(runtime))
    for question in questions[3:]:
        findings += question.findings()
    findings += _spark(runtime)
    at_source: list[str] = []
    if runtime.source.keeps_for_us and not any(f.setting in _SILENT for f in findings if f.part == "source"):
        findings += _guard("source", lambda: _missing_at_source(runtime, at_source))
    copies: list[PlannedCopy] = []
    wrong = any(
        f.severity == "error" and f.setting != SETTING and (f.part != "source" or f.setting in _SILENT)
        for f in findings
    )
    if not wrong:
        findings += _guard("mapping", lambda: _tables(runtime, copies))
    return CheckReport(tuple(findings), tuple(copies), tuple(at_source))


def _spark(runtime: Runtime) -> list[Finding]:
    """Report a Spark server whose settings make batches wrong; one that cannot be asked from here is a warning."""
    config = runtime.pipeline.spark
    if config.mode != "connect" or find_spec("pyspark") is None:
        return []
    try:
        endpoint = runtime.resolver(config.connection)
    except SluiceError:  # who runs the pipeline may have it
        return []
    if not testable(endpoint):
        return []
    try:
        answer = server_questions.ask(f"Spark {endpoint.address}", partial(probe, endpoint), ANSWER_S)
    except SluiceError as error:
        severity = "error" if isinstance(error, ConfigError) else "warning"
        return [_finding(severity, "spark", "server", endpoint.address, error.message, error.hint or "")]
    if isinstance(answer, NoAnswer):
        return [_finding("warning", "spark", "server", endpoint.address, str(answer))]
    return [_finding("ok", "spark", "server", endpoint.address, answer.value)]


def _missing_at_source(runtime: Runtime, statements: list[str]) -> list[Finding]:
    """Add the statements that make what a capture needs at the source."""
    with runtime.source.open() as session:
        if isinstance(session, PreparesSource):
            statements += session.missing()
    return []


def _places(runtime: Runtime) -> list[Finding]:
    return [
        _finding(
            "warning" if remark.fix else "ok",
            "pipeline",
            f"place of {remark.stage}",
            remark.value,
            remark.why,
            remark.fix,
        )
        for remark in placement_remarks(runtime.pipeline, runtime.rules_folder, runtime.store_uri)
    ]


def _notifiers(pipeline: PipelineConfig) -> list[Finding]:
    """Look for the classes of the notifiers, which nothing else asks for before the first alert."""
    if find_spec("airflow") is None:  # only Airflow's tasks and triggerer tell them
        return []
    for notifier in pipeline.alert_notifiers:
        notifier_class(notifier)
    return [_finding("ok", "alerts", "notifiers", name, "the class exists") for name in notifier_names(pipeline)]


def _unprotected(runtime: Runtime) -> list[Finding]:
    """Warn of each connection to another machine whose TLS is left to a default that protects nothing, and report one
    that is to ask for its password where the kind's client does not ask.
    """
    pipeline, findings = runtime.pipeline, []
    primary = [pipeline.source.primary] if pipeline.source.primary else []
    uses = [("source", pipeline.source.type, name) for name in (*pipeline.source.servers, *primary)]
    uses += [(f"target {target.name}", target.type, name) for target in pipeline.targets for name in target.servers]
    for part, kind, name in uses:
        with suppress(SluiceError):  # the check of the server reports what the connection lacks
            endpoint = runtime.resolver(name)
            if expires(endpoint) and kind not in KINDS:
                why = f"the client of {kind} does not ask password_command or credentials"
                findings.append(_finding("error", part, "password", f"connection {name}", why, "give it a password"))
            if fault := unprotected(kind, endpoint):
                why = f"{fault[0]} on the way to {endpoint.address}: who is on it reads the login and all rows"
                if "certificate" in fault[0]:
                    why = f"{fault[0]} on the way to {endpoint.address}: who is on it can answer in the server's place"
                fix = f"write into the connection's extra: {fault[1]}; any mode that the extra names ends this warning"
                findings.append(_finding("warning", part, "TLS", f"connection {name}", why, fix))
    return findings


ANSWER_S = 15.0
"""Seconds to wait for each server; all are asked at the same time."""

_SESSION_S = 5.0
"""Seconds to wait for a ZooKeeper session."""

_SHOWN_TABLES = 5
"""Tables that one finding names."""

_SILENT = {"no answer", "SourceUnavailable", "MissingConnection"}
"""The findings after which nothing more can be asked of the source."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A server that is being asked for its part of the report."""

    part: str
    server: str
    question: Question[list[Finding]]

    @classmethod
    def begin(
        cls, runtime: Runtime, part: str, what: str, connection: str, look: Callable[[Runtime], Sequence[Finding]]
    ) -> _Asked:
        """Start the check in a thread, with its own session."""
        own = replace(runtime, _state=None)
        server = what
        with suppress(SluiceError):  # the check itself reports what the connection lacks
            server = server_name(what, runtime.resolver, connection) if connection else what
        return cls(part, server, server_questions.begin(f"check of {server}", lambda: _guard(part, lambda: look(own))))

    def findings(self) -> list[Finding]:
        """Return the findings of the check, or one that says that there was no answer."""
        answer = self.question.answer(ANSWER_S)
        if not isinstance(answer, NoAnswer):
            return answer.value
        why = f"{self.server} did not answer within {ANSWER_S:.0f} s"
        fix = "is it running, and can it be reached from here? A firewall that drops packets looks the same"
        return [_finding("error", self.part, "no answer", "", why, fix)]


def make_missing(runtime: Runtime, report: CheckReport) -> None:
    """Run the statements of a report at the source, then its DDL at the targets.

    Raises PreflightError, LoadError that name the statement; those before it stay.

    Tables and columns that a target lacked are noted first: rows that it held before have no values in them, see
    :mod:`sluice.flows.incomplete_tables`.
    """
    if report.at_source:
        with runtime.source.open() as session:
            assert isinstance(session, PreparesSource), "it proposed the statements"
            for statement in report.at_source:
                session.make(statement)
    with runtime.state() as state:
        for copy in report.copies:
            note_absent(state, copy.target, copy.remarks, [copy.plan])
    apply_missing(runtime, report.statements)


def apply_missing(runtime: Runtime, statements: list[tuple[str, str]]) -> None:
    """Run DDL at targets: (target, statement). Raises LoadError that names the statement; those before it stay."""
    for name, statement in statements:
        schema = runtime.open_target(name).schema()
        assert schema is not None, "it proposed the statement"
        try:
            schema.apply(statement)
        except LoadError as error:
            error.hint = error.hint or (
                f"make it at the target by hand, in a form that its server takes, then `sluice check {runtime.name}` "
                "again; or leave the column out (mapping.columns.exclude)"
            )
            raise


def _tables(runtime: Runtime, copies: list[PlannedCopy]) -> list[Finding]:
    """Return one line per table without problems; otherwise one per finding."""
    from sluice.rules import RuleSet

    all_copies, tables = planned_copies(runtime)
    copies += all_copies
    with runtime.state() as state:
        begun = {target.name for target in runtime.pipeline.targets if state.acks.get(target.name) is not None}
        incomplete = state.incomplete.all()
    lines = [
        *_unknown_names(runtime, tables),
        *_unknown_unique(runtime.pipeline, all_copies),
        *_guard(
            "targets",
            lambda: options_without_table(
                runtime.pipeline,
                RuleSet.of(runtime.rules_path),
                [table.id for table in tables],
                [copy.plan.target for copy in all_copies],
            ),
        ),
        *_guard("mapping", lambda: _file_columns(runtime.pipeline, runtime.rules_path, tables)),
        *_guard("rules", lambda: _rules_on_tables(runtime, tables)),
        *_guard("rules", lambda: _rules_before_snapshot(runtime, tables)),
        *_guard("source", lambda: _partial_rows(runtime, all_copies)),
        *_guard("channel", lambda: _sent_back(runtime.pipeline, tables)),
        *_guard("channel", lambda: _into_itself(runtime.pipeline, runtime.resolver, all_copies)),
    ]
    lines += [
        _finding(
            "error",
            "source",
            str(table.id),
            f"{column} {kind}",
            "the type is not understood",
            "exclude the table from capture",
        )
        for table in tables
        for column, kind in table.unknown
    ]
    for copy in all_copies:
        part, names = f"target {copy.target}", f"{copy.plan.source} -> {copy.plan.target}"
        for remark in copy.remarks:
            place = f"{names}, column {remark.column}" if remark.column else names
            fix = remark.statement or remark.hint
            if remark.absent and copy.target in begun:
                incomplete_table = IncompleteTable(copy.target, copy.plan.source.schema, copy.plan.source.table)
                fix += (
                    f"; then `{copy_command(runtime.name, incomplete_table)}`: rows that it had before lack what is "
                    "made now until they are copied"
                )
            elif (remark.statement or remark.loses) and remark.column and copy.target in begun:
                verify = f"sluice verify {runtime.name} --table {copy.plan.source} --target {copy.target} --repair"
                fix += f"; then `{verify}`: rows that it had before keep what was cut"
            lines.append(_finding(remark.severity, part, "table", place, remark.why, fix))
        if copy.key == "whole row":
            fix = (
                f"name its unique key: mapping: [{{from: {copy.plan.source}, to: {copy.plan.target}, key: "
                f"[{', '.join(copy.unique)}]}}]"
            )
            fix = fix if copy.unique else "add a primary key at the source"
            why = (
                "it has no primary key: rows are told apart by all of their values, and an update costs a scan at "
                "the target"
            )
            lines.append(_finding("warning", part, "table", names, why, fix))
        if not copy.remarks:
            words = f"{len(copy.plan.columns)} columns, about {copy.rows} rows, by {copy.key}"
            if copy.left_out:
                words += f"; without {', '.join(copy.left_out)}"
            if copy.renamed:
                words += f"; renamed {', '.join(f'{a} -> {b}' for a, b in copy.renamed)}"
            lines.append(_finding("ok", part, "table", names, words))
    lines += [
        _finding(
            "warning",
            f"target {incomplete.target}",
            "rows",
            str(incomplete.source),
            sentence(runtime.name, incomplete),
            f"`{copy_command(runtime.name, incomplete)}`",
        )
        for incomplete in incomplete
    ]
    lines += _guard("targets", lambda: _not_replaced(runtime, all_copies))
    for target in runtime.pipeline.targets:
        places = [copy.plan.target for copy in all_copies if copy.target == target.name]
        lines += _guard(f"target {target.name}", partial(target_rights, runtime.open_target(target.name), places))
    if not any(remark.absent for copy in all_copies for remark in copy.remarks):  # of what is missing nothing is known
        lines += _guard("verify", lambda: _digests(runtime))
    lines += _shadows(runtime)
    lines += _unseen(runtime, [table.id for table in tables])
    lines += _keys_left_out(tables)
    if not all_copies:
        lines.append(
            _finding(
                "warning", "source", "capture", "no table", "no table fits capture.include now", "look at the patterns"
            )
        )
    return lines


def _keys_left_out(tables: list[SourceTable]) -> list[Finding]:
    """Return an error for each table whose key ``capture.columns.exclude`` keeps out of storage."""
    findings = []
    for table in tables:
        names = [name for name in table.schema.primary_key or table.unique_not_null if name in table.left_out]
        if names:
            error = key_left_out(table.id, names)
            findings.append(
                _finding("error", "source", "capture.columns", str(table.id), error.message, error.hint or "")
            )
    return findings


def _unknown_names(runtime: Runtime, tables: list[SourceTable]) -> list[Finding]:
    """Return an error for each name in the mapping that no table of its line has, as the merge would raise it.

    A line that no table matches is an error if its table is probably a misspelling of one that no line names; otherwise
    a warning, because the table may still be created.
    """
    lines, catalog = runtime.pipeline.mapping, known_tables(tables)
    by_line, unknown_names = tables_by_line(lines, catalog), []
    misspelt = {wrong.name.number: wrong for wrong in misspelt_tables(lines, catalog)}
    for number, line in enumerate(lines):
        if number in by_line:
            continue
        place, wrong = f"mapping.{number} ({line.from_})", misspelt.get(number)
        if wrong is not None:
            unknown_names.append(_finding("error", "mapping", place, "no table", wrong.why, wrong.fix))
        else:
            why = f"no captured table goes by this line{meant(line.from_, [str(table.id) for table in tables])}"
            unknown_names.append(
                _finding("warning", "mapping", place, "no table", why, "correct its from, or remove it")
            )
    with runtime.state() as state:
        seen_name = state.mapped_names.read()
    for wrong in wrong_names(lines, catalog):
        passed = wrong.name.stored in seen_name and wrong.name.column not in {
            c for t in by_line[wrong.name.number] for c in t.columns
        }
        severity, why = ("warning", f"{wrong.why}; it was there") if passed else ("error", wrong.why)
        unknown_names.append(_finding(severity, "mapping", wrong.name.place, wrong.name.column, why, wrong.fix))
    return unknown_names


def _unknown_unique(pipeline: PipelineConfig, copies: list[PlannedCopy]) -> list[Finding]:
    """Return an error for each column in ``mapping.unique`` that no target table of its line has."""
    routes, lines = Mapping.of(pipeline), pipeline.mapping
    columns: dict[int, dict[str, None]] = {}
    for copy in copies:
        if (matched := routes.matched(copy.plan.source)) is not None:
            columns.setdefault(lines.index(matched[0]), {}).update(dict.fromkeys(c.name for c in copy.plan.columns))
    lowered = {number: {name.lower() for name in names} for number, names in columns.items()}
    return [
        _finding(
            "error",
            "mapping",
            f"mapping.{number} ({lines[number].from_}): unique",
            name,
            f"no column {name!r} goes to the target{meant(name, known_names)}",
            "unique names columns as they are at the target",
        )
        for number, known_names in columns.items()
        for name in dict.fromkeys(name for group in lines[number].unique for name in group)
        if name.lower() not in lowered[number]
    ]


def _partial_rows(runtime: Runtime, copies: list[PlannedCopy]) -> list[Finding]:
    """Warn of tables of which the log may have only some columns, where a target or a rule needs whole rows."""
    from sluice.rules import RuleSet

    with runtime.source.open() as session:
        cut = session.partial_tables() if isinstance(session, LogsPartialRows) else {}
    rules = RuleSet.load(runtime.rules_path) if cut and runtime.rules_path is not None else RuleSet()
    offered = {
        name: runtime.open_target(name).capabilities.features for name in {copy.target for copy in copies if cut}
    }
    wanting: dict[str, list[TableId]] = {}
    for copy in copies:
        table = copy.plan.source
        if table in cut and Feature.PARTIAL_ROWS not in offered[copy.target]:
            wanting.setdefault(f"target {copy.target}", []).append(table)
        elif table in cut and rules.concerning(table):
            wanting.setdefault("rules", []).append(table)
    why = (
        "whole rows are needed, and the log lacks what an update leaves unchanged and the server stores out of line "
        "(TOAST): the first such update stops the load"
    )
    findings = []
    for part, tables in wanting.items():
        every = list(dict.fromkeys(tables))  # several targets may want rows of one table through rules
        shown_tables = every[:_SHOWN_TABLES]
        names = ", ".join(map(str, shown_tables)) + (", …" if len(every) > len(shown_tables) else "")
        findings.append(
            _finding("warning", part, "whole rows", names, why, "; ".join(cut[table] for table in shown_tables))
        )
    return findings


def _digests(runtime: Runtime) -> list[Finding]:
    """Say of what no digests can be kept, if they are asked for."""
    if runtime.pipeline.verify.digest != "log":
        return []
    place, fix = "digest: log", "`sluice verify` compares by reading both sides"
    refused = source_refuses(runtime)
    if refused:
        return [_finding("error", "verify", place, runtime.name, refused, "verify: {digest: none}")]
    targets = [
        (target.name, target_refuses(target, runtime.open_target(target.name))) for target in runtime.pipeline.targets
    ]
    findings = [_finding("warning", "verify", place, f"target {name}", why, fix) for name, why in targets if why]
    return findings + [
        _finding("warning", "verify", place, f"{table} at {target}", why, fix)
        for target, table, why in not_covered(runtime)
    ]


def _into_itself(pipeline: PipelineConfig, resolver: ConnectionResolver, copies: list[PlannedCopy]) -> list[Finding]:
    """Warn of each captured table that the pipeline writes at the server it reads.

    Other tables of that server make no ring.
    """
    mark = Channels(channels_folder()).mark(pipeline)
    own_targets = sent_to_itself(pipeline, mark, resolver)
    selection = Selection.compile(pipeline.capture)
    return [
        _finding(
            "warning",
            "channel",
            "ring",
            f"{copy.plan.source} -> {copy.plan.target}",
            f"target {copy.target} is the server that is read, and {copy.plan.target} is captured: what is loaded "
            "into it is captured again",
            "give it a name there that is not captured (mapping: to; capture: exclude), or set mark and ignore_marks",
        )
        for copy in copies
        if copy.target in own_targets and selection.wants(copy.plan.target)
    ]


def _sent_back(pipeline: PipelineConfig, tables: list[SourceTable]) -> list[Finding]:
    """Return an error for each table whose rows would be loaded where they already are, and for each that cannot send
    single columns.
    """
    channel = Channels(channels_folder()).of(pipeline.pipeline)
    if channel is None or channel.consistency == "none":
        return []
    why = (
        f"it has no primary key, and channel {channel.channel} repairs rows by their keys: rows that come back "
        "would be there twice"
    )
    fix = "give it a primary key at both sites, or exclude it from capture in both pipelines"
    findings = [
        _finding("error", "channel", "primary key", str(table.id), why, fix)
        for table in tables
        if not table.schema.primary_key
    ]
    mapping = Mapping.of(pipeline)
    routes = [(table, mapping.route(table.id)) for table in tables]
    return findings + [
        _finding("error", "channel", "send: changed_columns", str(table.id), NOT_BY_COLUMN, whole_rows(route))
        for table, route in routes
        if route.changed_only and len(table.unique) > 1
    ]


def _rules_on_tables(runtime: Runtime, tables: list[SourceTable]) -> list[Finding]:
    """Run built-in and SQL rules on no row of each table, which shows columns that it lacks and values that do not
    fit it.
    """
    from sluice.rules import RuleSet, images, kinds
    from sluice.rules.lookups import resolved
    from sluice.rules.ruleset import emitted, matches

    if runtime.rules_path is None:
        return []
    rules = RuleSet.load(runtime.rules_path)
    ruling = StageRules.of(rules, runtime.pipeline, runtime.rules_path, runtime.resolver)
    lines = []
    for table in tables:
        rows = images.unfold(merged_schema(table.schema.arrow_schema).empty_table())
        sure = True
        for rule in rules:
            if not matches(rule, table.id):
                continue
            if rule.config.builtin is None and rule.kind is not RuleKind.SQL:
                sure = False  # its columns are known only when it runs
                continue
            try:
                lookups = resolved(rule.config.lookups, ruling.reader(rule))
                key = key_columns(rows.schema)
                out_rows = kinds.run(kinds.Run(rule, table.id, lookups), rows)[table.id]
                rows = emitted(rule, out_rows, table.id, table.id, key)
            except SluiceError as error:
                elsewhere = "environment variable" in error.message and runtime.pipeline.spark.mode != "local"
                severity = "error" if sure and not elsewhere else "warning"
                left_out = ", ".join(table.left_out)
                stored = f"capture.columns.exclude keeps {left_out} out of storage" if left_out else ""
                lines.append(
                    _finding(
                        severity,
                        "rules",
                        f"{rule.name} on {table.id}",
                        error.where or "",
                        error.message,
                        "; ".join(filter(None, [error.hint, stored])),
                    )
                )
                break
    return lines


def _rules_before_snapshot(runtime: Runtime, tables: list[SourceTable]) -> list[Finding]:
    """Report tables whose rows cannot be read from the snapshot: only rows tell which columns the rules make, and none
    were noted.
    """
    from sluice.rules import RuleSet

    keyed = {target.name: target.snapshot_keys for target in runtime.pipeline.targets if target.snapshot_keys}
    keys = ", ".join(sorted({key for keys in keyed.values() for key in keys}))
    if runtime.rules_path is None or not keyed:
        return []
    rules, routes = RuleSet.load(runtime.rules_path), Mapping.of(runtime.pipeline)
    with runtime.state() as state:
        held_acknowledgement = state.acks.get(SNAPSHOT)
        if held_acknowledgement is None:
            return []
        noted = noted_columns(runtime.store, state, held_acknowledgement.batch, rules)
    reader = snapshot_reader(runtime.open_target(SNAPSHOT))
    findings = []
    for table in tables:
        why, target = known_when_it_runs(rules, table.id), routes.route(table.id).target
        if not why or (table.id, target) in noted:
            continue
        version = reader.as_of(target, reader.whole(target, held_acknowledgement.batch))
        if version is not None and version.rows:
            findings.append(
                _finding(
                    "error",
                    "rules",
                    str(table.id),
                    f"{keys} of {', '.join(keyed)}",
                    f"its rows cannot be read back from the snapshot: {why}, and its columns were not noted when they "
                    "came",
                    f"`sluice dump start {runtime.name} --target {SNAPSHOT}` copies it into the snapshot again",
                )
            )
    return findings


def _not_replaced(runtime: Runtime, copies: Sequence[PlannedCopy]) -> list[Finding]:
    """Report tables of which a target that starts again from the snapshot could not remove rows that the snapshot
    lacks.
    """
    findings = []
    for target in runtime.pipeline.targets:
        fitting = (copy for copy in copies if all(remark.severity == "ok" for remark in copy.remarks))
        own_plans = [copy.plan for copy in fitting if copy.target == target.name]
        if target.on_lost_batches != "snapshot" or not own_plans:
            continue
        sources = [plan.source for plan in own_plans]
        reasons, opened = (
            why_not(runtime.pipeline, runtime.rules_path, sources, sources, ()),
            runtime.open_target(target.name),
        )
        others = other_writers(opened)
        for plan in own_plans:
            key = replace(plan, columns=plan.key_columns)
            kept_purpose = kept_on_purpose(runtime.pipeline, target.name, others, plan.target)
            why = kept_purpose or reasons.get(plan.source) or refuses(opened, key, listed=False)
            if why:
                doing = f"rows of {plan.target} that the snapshot does not have cannot be removed: {why}"
                fix = "leave the line out; `sluice dump start` copies tables where batches are gone"
                findings.append(_finding("error", f"target {target.name}", "on_lost_batches", "snapshot", doing, fix))
    return findings


def _unseen(runtime: Runtime, tables: list[TableId]) -> list[Finding]:
    """Warn of each pattern that matches no table if there may be tables that the source's login cannot see."""
    lost = [
        p for p in runtime.pipeline.capture.include if not any(patterns.fullmatch(p, str(table)) for table in tables)
    ]
    if not lost:
        return []
    with runtime.source.open() as source:
        blind = source.blindness()
    if blind is None:
        return []
    return [
        _finding(
            "warning",
            "source",
            "capture.include",
            pattern,
            f"it fits no table that the login {blind.login!r} sees, and it does not see tables on which it has no "
            "privilege",
            _grant_for(pattern, blind),
        )
        for pattern in lost
    ]


def _grant_for(pattern: str, blind: Blindness) -> str:
    """Return the GRANT on the schema that a pattern names, or on all."""
    named = re.match(r"((?:\w|\\[^\w.])+)\\\.", pattern)
    if named is None or blind.on_schema is None:
        return f"{blind.grant}, or ON the schema of these tables"
    return blind.on_schema(re.sub(r"\\(.)", r"\1", named[1]))


def _shadows(runtime: Runtime) -> list[Finding]:
    """Warn of the tables that are not captured because of their name alone."""
    selection = Selection.compile(runtime.pipeline.capture)
    with runtime.source.open() as source:
        tables = source.table_rows()
    names = [str(table) for table in sorted(tables) if selection.looks_like_shadow(table)]
    if not names:
        return []
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return [
        _finding(
            "warning",
            "source",
            "capture.shadow_tables",
            listed,
            "named as the tables that an online schema change (gh-ost, pt-online-schema-change) makes, and so not "
            "captured",
            "if they are your own: capture: {shadow_tables: capture}",
        )
    ]


def _guard(part: str, look: Any) -> list[Finding]:
    try:
        return list(look())
    except SluiceError as error:
        return [_finding("error", part, type(error).__name__, error.where or "", error.message, error.hint or "")]
    except Exception as error:  # for example an answer that is not the protocol's
        _log.debug("check_failed", part=part, exc_info=True)
        why = f"what it answered is not understood: {type(error).__name__}: {error}"
        return [
            _finding(
                "error",
                part,
                type(error).__name__,
                "",
                why,
                "is it the server that is meant, and not a proxy or another service?",
            )
        ]


def _channel(name: str, resolver: ConnectionResolver) -> list[Finding]:
    """Check the channel as a whole: both pipelines exist, and each one's target is the other one's source."""
    channels = Channels(channels_folder())
    channel = channels.of(name)
    round_ = ring(name, channels=channels, pipelines_folder=pipelines_folder(), resolver=resolver)
    if round_:
        why = (
            "each of these reads what the one before it writes: changes of tables that all of them carry go round "
            "without end"
        )
        fix = f"`sluice channel new NAME --pipelines {' '.join(round_)} --main {round_[0]}`"
        fix = fix if len(round_) == 2 else "take one of them away, or stop it with mark and ignore_marks"
        return [_finding("warning", "channel", "ring", " -> ".join(round_), why, fix)]
    if channel is None:
        return []
    pair = members(channel, pipelines_folder())
    ends = ends_of(channel, *pair, resolver)
    words = "; ".join(f"{end.pipeline.pipeline} into {end.target}" for end in ends)
    why = f"the ends meet: {words}; DDL goes with {channel.carrier}"
    findings = [_finding("ok", "channel", channel.channel, f"main: {channel.main_pipeline}", why)]
    return [*findings, *_same_offsets([Runtime.build(config, resolver=resolver, runner="local") for config in pair])]


def _same_offsets(runtimes: list[Runtime]) -> list[Finding]:
    """Warn if both sites number new rows in steps, but from the same first number."""
    numberings = []
    for runtime in runtimes:
        with runtime.source.open() as source:
            numberings.append(source.numbering())
    numbers = [(step, first % step) for step, first in filter(None, numberings)]
    if len(numbers) < 2 or min(step for step, _ in numbers) < 2 or len({first for _, first in numbers}) > 1:
        return []  # the pre-flight reports a step of 1
    why = "both sites give the same numbers to new rows, and one row overwrites the other"
    fix = (
        "SET PERSIST (MariaDB: SET GLOBAL) auto_increment_offset = 1 at one site and 2 at the other one; reconnect the "
        "applications"
    )
    value = " and ".join(str(first) for _, first in filter(None, numberings))
    return [_finding("warning", "channel", "auto_increment_offset", value, why, fix)]


def _zookeeper(runtime: Runtime) -> list[Finding]:
    with runtime.state(connect_timeout_s=_SESSION_S) as state:
        cursor = state.cursor()
        value = str(cursor.position) if cursor else "none yet"
        words = f"{runtime.keeper} answers"
        findings = [_finding("ok", "zookeeper", "captured position", value, words)]
        findings += _public_key(runtime, state) if cursor else []
        if missed := missed_copy(runtime.pipeline, state):
            fix = f"`sluice dump start {runtime.name}` copies all tables now"
            findings.append(_finding("warning", "source", "start", "dump", missed, fix))
        return findings


def _public_key(runtime: Runtime, state: PipelineState) -> list[Finding]:
    """Return what to do about a key of origin markers that anybody can know."""
    channel = runtime.keyless
    if channel is None or state.mark_key(channel):
        return []
    known_key = public_key(channel)
    why = (
        f"origin markers are sealed with {known_key!r}, as an older version began the pipeline: whoever may "
        "write to the source, and any role of a PostgreSQL, can mark changes as loaded by Sluice, and they are not "
        "captured"
    )
    if not channel:
        fix = "set the mark in the file of a channel that has a key (marks): docs/two-way.md, the key of the marks"
        return [_finding("warning", "channel", "key", known_key, why, fix)]
    fix = (
        f"`sluice pause {channel}`, stop what runs its pipelines, write `key: RANDOM` (`openssl rand -hex 16` prints "
        f"one) and `former_key: {known_key}` into its file, start them and `sluice resume {channel}`; take "
        "former_key out once both pipelines have captured what was loaded before"
    )
    return [_finding("error", "channel", "key", known_key, why, fix)]


def _source(runtime: Runtime) -> list[Finding]:
    try:
        with runtime.state(connect_timeout_s=_SESSION_S) as state:
            cursor = state.cursor()
    except SluiceError:
        cursor = None
    with runtime.source.open() as source:
        findings = source.preflight(cursor.position if cursor else None)
        lines = [replace(f, part="source") for f in findings]
        if cursor and not any(line.severity == "error" for line in lines):
            lines += _same_log(source, cursor.position)
        if runtime.pipeline.complete is not None:
            lines += _settles(source)
        if not lines:
            words = f"{source.identity.dialect} {source.identity.version}: no problems found"
            lines = [_finding("ok", "source", "pre-flight", str(source.head), words)]
    return lines + _others(runtime)


def _settles(source: SourceSession) -> list[Finding]:
    """Return an error if the source cannot say up to when its log is complete (``complete`` in the pipeline file)."""
    try:
        source.settled()
    except PreflightError as error:
        return [_finding("error", "source", "complete", "not possible", error.message, error.hint or "")]
    return []


def _others(runtime: Runtime) -> list[Finding]:
    """Check whether the group's other servers could be read instead of the current one."""
    source = runtime.pipeline.source
    if not source.connections:
        return []
    with runtime.state() as state:
        now, cursor = runtime.member(state), state.cursor()
    lines = []
    for name in source.connections:
        if name == now:
            continue
        try:
            relocation = relocated(runtime, cursor, name) if cursor else None
            place = str(relocation.position) if relocation else "nothing is captured yet"
            if relocation is not None and relocation.lost:
                why = f"a failover to it is possible, but {relocation.doubts}"
                fix = f"compare the tables of the two servers; after a failover `sluice verify run {runtime.name}`"
                lines.append(_finding("warning", "source", f"server {name}", place, why, fix))
                continue
            lines.append(_finding("ok", "source", f"server {name}", place, "a failover to it is possible"))
        except SluiceError as error:
            why = f"a failover to it is not possible now: {error.message}"
            lines.append(_finding("warning", "source", f"server {name}", source.failover, why, error.hint or ""))
    return lines


def _same_log(source: SourceSession, position: Offset) -> list[Finding]:
    """Return an error if the log is no longer the one that was captured."""
    try:
        source.confirm(position)
    except LostPosition as lost:
        return [_finding("error", "source", "position", str(position), lost.message, lost.hint or "")]
    return []


def _store(runtime: Runtime) -> list[Finding]:
    store = runtime.store
    store.check_space()
    store.require_writable()
    return [_finding("ok", "store", "segments", runtime.store_uri, f"batches stored: {len(store.batches())}")]


def _named_files(pipeline: PipelineConfig) -> list[tuple[str, RowFiles]]:
    """Return each entry of the mapping's files, with its place in the file."""
    return [
        (f"mapping.{number} ({line.from_}): files.{index}", files)
        for number, line in enumerate(pipeline.mapping)
        for index, files in enumerate(line.files)
    ]


def _files(runtime: Runtime, where: str, files: RowFiles) -> list[Finding]:
    """Look whether files can be read and written. Spark workers do it later, from where they are."""
    source_answer = require_reachable(files, runtime.resolver, ANSWER_S / 2)
    return [_finding("ok", "files", where, " -> ".join(files.places), f"{source_answer}, and the other can be written")]


def _file_columns(pipeline: PipelineConfig, rules_path: Path | None, tables: list[SourceTable]) -> list[Finding]:
    """Return an error for each column of the mapping's files that a table lacks, unless rules may make it."""
    from sluice.rules import RuleSet

    rules, routes = RuleSet.of(rules_path), Mapping.of(pipeline)
    file_columns = []
    for table in tables:
        known_names = [column.name for column in table.schema.columns]
        for files in routes.route(table.id).files if not rules.matching(table.id).rules else ():
            for key, name in (("path", files.path), ("version", files.version)):
                if name is not None and name not in known_names:
                    why = f"rows of {table.id} have no column {name!r}{meant(name, known_names)}"
                    fix = "correct it in the pipeline file, or give the table a line of its own in the mapping"
                    file_columns.append(_finding("error", "mapping", f"files: {key}", name, why, fix))
    return file_columns


def _rules(runtime: Runtime) -> list[Finding]:
    from sluice.rules import RuleSet

    if runtime.rules_path is None:
        return [_finding("ok", "rules", "rules", "none", "rows go as they are")]
    rules = RuleSet.load(runtime.rules_path)
    rules.validate()
    ruling = StageRules.of(rules, runtime.pipeline, runtime.rules_path, runtime.resolver)
    findings = [_finding("ok", "rules", "rules", str(runtime.rules_path.name), f"rules loaded: {len(rules)}")]
    for rule in rules:
        for name, config in rule.config.lookups.items():
            rows = len(ruling.reader(rule)(name, config))
            findings.append(
                _finding("ok", "rules", f"lookup {name} of {rule.name}", f"{rows:,} rows", "it can be read")
            )
    return findings


def _target(runtime: Runtime, name: str) -> list[Finding]:
    target = runtime.open_target(name)
    lines = target_rights(target)
    if any(line.severity == "error" for line in lines):
        return lines
    if isinstance(target, NamesRisks):
        lines += [replace(risk, part=f"target {name}") for risk in target.risks()]
    if target.checkpoints is not None:
        target.checkpoints.read()  # does it answer at all?
    with runtime.state(connect_timeout_s=_SESSION_S) as state:
        checkpoint = CheckpointCheck(runtime, state, name, target).read()
        others = list(server_lines(runtime, state, name)) if target.config.connections else []
    batch = checkpoint.batch if checkpoint else 0
    lines.append(_finding("ok", f"target {name}", "acknowledged batch", str(batch), "the target answers"))
    for server, error in others:
        if error is None:
            lines.append(_finding("ok", f"target {name}", f"server {server}", "", "a switch to it is possible"))
            continue
        why = f"a switch to it is not possible now: {error.message}"
        lines.append(_finding("warning", f"target {name}", f"server {server}", "", why, error.hint or ""))
    return lines
