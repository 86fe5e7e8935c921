"""Commands by themselves: each pipeline is opened from its file, with connections of the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from sluice.cli.console import open_pipeline
from sluice.errors import ConfigError
from sluice.operations.plan import ActionPlan, together

if TYPE_CHECKING:
    from sluice.flows.dump.progress import DumpView
    from sluice.flows.runtime import Runtime
    from sluice.model.dumps import Dump
    from sluice.operations.check import CheckReport
    from sluice.operations.deadletters.replay import ReplayOutcome
    from sluice.operations.deadletters.store import DeadLetter
    from sluice.operations.groups import GroupMove
    from sluice.operations.plan import Plan
    from sluice.operations.status import Status
    from sluice.operations.subscriptions import SubscriptionStatus
    from sluice.operations.verbs.orders import Order
    from sluice.operations.verify.digests import DigestReport
    from sluice.operations.verify.progress import Told
    from sluice.operations.verify.result import VerifyResult

_AT_A_TIME = 8
"""Pipelines whose status is read at the same time."""


class Direct:
    """See :class:`sluice.cli.service.Service`."""

    def __init__(self) -> None:
        self._opened: dict[str, Runtime] = {}
        self._reports: dict[str, CheckReport] = {}

    def act(self, pipeline: str, action: str, order: Mapping[str, Any], *, dry_run: bool = False) -> ActionPlan:
        """Carry an action out, or return its plan."""
        from sluice.operations.control import who
        from sluice.operations.verbs.table import VERBS, act

        if action == "make-missing":
            return self._make_missing(pipeline)
        runtimes = self._meant(pipeline) if VERBS[action].of_channel and not dry_run else [self._open(pipeline)]
        return together([act(runtime, action, order, by=who(), dry_run=dry_run) for runtime in runtimes])

    def plan(self, pipeline: str, action: str, order: Order) -> Plan:
        """Return the plan of an action."""
        from sluice.operations.verbs.table import VERBS

        return VERBS[action].planned(self._open(pipeline), order)

    def _make_missing(self, pipeline: str) -> ActionPlan:
        """Run the statements of the last check, which the person saw."""
        from sluice.operations.check import make_missing

        report = self._reports[pipeline]
        make_missing(self._open(pipeline), report)
        at_source = [*report.at_source, *(statement for _, statement in report.statements)]
        return ActionPlan("check --apply", tuple(at_source))

    def move_group(self, kind: str, group: str, order: Mapping[str, Any], *, dry_run: bool) -> Iterator[GroupMove]:
        """Move the pipelines of a source or target group, and yield each answer."""
        from sluice.config.connections import from_environment
        from sluice.config.folders import pipelines_folder
        from sluice.flows.runtime import Runtime
        from sluice.operations.control import who
        from sluice.operations.groups import GroupKind, members, move_group

        side, only = GroupKind(kind), order.get("pipelines")
        chosen = [member for member in members(side, group, pipelines_folder()) if not only or member.pipeline in only]
        for pipeline in chosen:
            if pipeline.pipeline not in self._opened:
                self._opened[pipeline.pipeline] = Runtime.build(pipeline, resolver=from_environment)
        runtimes = [self._opened[pipeline.pipeline] for pipeline in chosen]
        yield from move_group(side, group, runtimes, order, by=who(), dry_run=dry_run)

    def audit(self, pipeline: str) -> list[dict[str, Any]]:
        """Return what people did to a pipeline, oldest first."""
        with self._open(pipeline).state() as state:
            return state.audit.entries()

    def alerts(self, pipeline: str) -> dict[str, Any]:
        """Return the alert rules."""
        from sluice.operations.alert_rules import listed

        runtime = self._open(pipeline)
        with runtime.state() as state:
            return listed(runtime.pipeline, state)

    def check(self, pipeline: str) -> dict[str, Any]:
        """Return the report of a check."""
        from sluice.operations.check import check

        self._reports[pipeline] = check(self._open(pipeline))
        return self._reports[pipeline].to_json()

    def statuses(self, pipeline: str | None) -> list[Status | dict[str, Any]]:
        """Return the status of one pipeline or of all; several are read at a time, so that servers that do not answer
        delay their own pipelines only.
        """
        from sluice.operations.status import status

        if pipeline is not None:
            return [status(self._open(pipeline))]
        runtimes = list(self._all())
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="status") as pool:
            return list(pool.map(lambda runtime: runtime if isinstance(runtime, dict) else status(runtime), runtimes))

    def _all(self) -> list[Runtime | dict[str, Any]]:
        from sluice.config.folders import pipelines_folder
        from sluice.config.loading import yaml_files
        from sluice.config.problems import shown

        runtimes: list[Runtime | dict[str, Any]] = []
        for path in yaml_files(pipelines_folder()):
            try:
                runtimes.append(self._open(str(path)))
            except ConfigError as error:
                runtimes.append({"pipeline": shown(path.stem), "state": "invalid", "errors": [str(error)]})
        return runtimes

    def subscriptions(self, pipeline: str) -> list[SubscriptionStatus]:
        """Return the readers of a pipeline."""
        from sluice.operations.subscriptions import subscriptions

        runtime = self._open(pipeline)
        with runtime.state() as state:
            return subscriptions(runtime, state)

    def start_dump(
        self, pipeline: str, request: Mapping[str, Any], tuning: Mapping[str, Any], *, overwrite: bool, dry_run: bool
    ) -> Dump:
        """Begin a dump, or only say what it would be."""
        from sluice.flows.dump.start import start, tuned
        from sluice.operations.control import who

        runtime = self._open(pipeline, "local")
        pace = tuned(runtime.pipeline, **tuning)
        return start(runtime, **request, tuning=pace, dry_run=dry_run, overwrite=overwrite, by=who())

    def dumps(self, pipeline: str) -> list[DumpView]:
        """Return all dumps, oldest first."""
        from sluice.flows.dump.progress import views

        return views(self._open(pipeline, "local"))

    def dump(self, pipeline: str, dump: str) -> DumpView:
        """Return one dump; "": the newest that has not ended."""
        from sluice.flows.dump.progress import one_view

        return one_view(self._open(pipeline, "local"), dump)

    def steer_dump(self, pipeline: str, change: str, dump: str, changes: Mapping[str, Any]) -> DumpView:
        """Pause, resume, cancel or tune a dump."""
        from sluice.flows.dump import progress
        from sluice.operations.control import who

        call: Callable[..., DumpView] = getattr(progress, change)
        return call(self._open(pipeline, "local"), dump, by=who(), **changes)

    def watching(self, pipeline: str) -> AbstractContextManager[Any]:
        """Keep one ZooKeeper session open."""
        return self._open(pipeline, "local").state()

    def letters(self, pipeline: str, *, everything: bool) -> list[DeadLetter]:
        """Return the dead letters, oldest first."""
        from sluice.operations.deadletters.store import letters

        return letters(self._open(pipeline), everything=everything)

    def letter(self, pipeline: str, letter_id: str) -> tuple[DeadLetter, dict[str, Any]]:
        """Return a dead letter and its row."""
        from sluice.operations.deadletters.store import contents, letter

        runtime = self._open(pipeline)
        dead_letter = letter(runtime, letter_id)
        row = contents(runtime, dead_letter) if dead_letter.stage != "skip" else {"row": {}, "before": None}
        return dead_letter, row

    def waiting_letters(self, pipeline: str, ids: Sequence[str]) -> list[DeadLetter]:
        """Return those of the letters that wait; no ids: all."""
        from sluice.operations.deadletters.store import chosen

        return [letter for letter in chosen(self._open(pipeline), ids) if letter.waiting]

    def replay(self, pipeline: str, ids: Sequence[str], target: str | None, *, dry_run: bool) -> list[ReplayOutcome]:
        """Deliver dead letters."""
        from sluice.operations.control import who
        from sluice.operations.deadletters.replay import replay

        return replay(self._open(pipeline), ids, target=target, by=who(), dry_run=dry_run)

    def discard(self, pipeline: str, ids: Sequence[str], reason: str) -> list[DeadLetter]:
        """Settle dead letters without delivering them."""
        from sluice.operations.control import who
        from sluice.operations.deadletters.replay import discard

        return discard(self._open(pipeline), ids, by=who(), reason=reason)

    def verify(self, pipeline: str, request: Mapping[str, Any], on_progress: Told) -> VerifyResult:
        """Compare, and repair if that is asked for."""
        from sluice.operations.control import who
        from sluice.operations.verify.verify import VerifySpec, verify

        runtime = self._open(pipeline, "local")
        sample = request["sample"] if request["sample"] is not None else runtime.pipeline.verify.share
        method = request["method"] or runtime.pipeline.verify.method
        return verify(runtime, VerifySpec(**{**request, "sample": sample, "method": method}, by=who()), on_progress)

    def digests(self, pipeline: str, tables: Sequence[str], targets: Sequence[str]) -> DigestReport:
        """Return what the kept digests say."""
        from sluice.operations.verify.digests import read_digests

        return read_digests(self._open(pipeline), tables=tables, targets=targets)

    def sweep(self, pipeline: str, request: Mapping[str, Any], on_progress: Told) -> DigestReport:
        """Read tables and compare them with the kept digests."""
        from sluice.operations.verify.digests import SweepSpec, sweep

        runtime = self._open(pipeline, "local")
        share = request["share"] if request["share"] is not None else runtime.pipeline.verify.share
        return sweep(runtime, SweepSpec(**{**request, "share": share}), on_progress)

    def results(self, pipeline: str) -> list[VerifyResult]:
        """Return the last verifications, oldest first."""
        from sluice.operations.verify.result import kept

        return kept(self._open(pipeline).store)

    def result(self, pipeline: str, name: str) -> VerifyResult:
        """Return one verification; "": the newest."""
        from sluice.operations.verify.result import named

        runtime = self._open(pipeline)
        return named(runtime.store, runtime.name, name)

    def channels(self) -> list[dict[str, Any]]:
        """Return all channels."""
        from sluice.config.folders import channels_folder, pipelines_folder
        from sluice.operations.channel import listed

        return listed(folder=channels_folder(), pipelines_folder=pipelines_folder())

    def channel(self, name: str) -> dict[str, Any]:
        """Return one channel."""
        from sluice.operations.channel import show

        return self._of_channel(show, name)

    def conflicts(self, name: str) -> dict[str, Any]:
        """Return the conflicts of a channel."""
        from sluice.operations.conflicts import conflicts

        return self._of_channel(conflicts, name)

    def _of_channel(self, call: Callable[..., dict[str, Any]], name: str) -> dict[str, Any]:
        from sluice.config.connections import from_environment
        from sluice.config.folders import channels_folder, pipelines_folder

        folders = {"folder": channels_folder(), "pipelines_folder": pipelines_folder()}
        return call(name, **folders, resolver=from_environment)

    def _open(self, pipeline: str, mode: str | None = None) -> Runtime:
        if pipeline not in self._opened:
            self._opened[pipeline] = open_pipeline(pipeline, mode=mode)
        return self._opened[pipeline]

    def _meant(self, name: str) -> list[Runtime]:
        """Open the pipeline of this name, or the two of the channel. Raises ConfigError."""
        from sluice.config.channel import find_channel
        from sluice.config.folders import channels_folder

        try:
            return [self._open(name)]
        except ConfigError as error:
            try:
                _, channel = find_channel(name, channels_folder())
            except ConfigError:
                raise error from None
        return [self._open(pipeline) for pipeline in channel.pipelines]
