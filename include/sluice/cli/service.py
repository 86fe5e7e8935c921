"""The way of a command to its pipelines: by itself (ZooKeeper, the servers), or through the API of the operator's page.

:func:`service` is the one place that chooses. A command that has only one of the two ways is in :data:`REACH` with the
reason, and says so before it does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.cli.through_api import PageApi
    from sluice.flows.dump.progress import DumpView
    from sluice.model.dumps import Dump
    from sluice.operations.deadletters.replay import ReplayOutcome
    from sluice.operations.deadletters.store import DeadLetter
    from sluice.operations.groups import GroupMove
    from sluice.operations.plan import ActionPlan, Plan
    from sluice.operations.status import Status
    from sluice.operations.subscriptions import SubscriptionStatus
    from sluice.operations.verbs.orders import Order
    from sluice.operations.verify.progress import Told
    from sluice.operations.verify.result import VerifyResult

HERE = "here"
"""The command needs no ZooKeeper and no server: it runs in this process, as without ``--api``."""

THROUGH = "through"
"""The command goes through the API."""

_STORE = "it reads the files of the segment store, which the API does not hand out"
_SERVERS = "it opens and closes servers from here"
_SCHEMA = "it works on the schema history with files of this machine; the API shows definitions only"

REACH: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "status", "audit", "dump list", "dump show", "verify list", "verify show", "dead-letters list",
            "dead-letters show", "channel list", "channel show", "channel conflicts", "subscriptions list",
            "alerts list", "mcp",
        ),
        THROUGH,
    ),
    **dict.fromkeys(
        (
            "new", "migrate new", "migrate verify-certificate", "rules list", "rules new", "rules test", "targets list",
            "targets new", "formats new", "stack up", "stack down", "stack status", "stack env", "stack demo",
        ),
        HERE,
    ),
    "run": "it works on batches in this process, with ZooKeeper and all servers",
    "doctor": "it looks at the surroundings of this process, not at those of Airflow",
    "dump work": "it reads rows of the source in this process; through the API a run of Airflow does "
    "(`sluice dump start`)",
    "channel new": "it writes a file into the folder of the channels; put it there as you put pipeline files",
    "verify digest": "it reads what is kept at the targets from here",
    "verify sweep": "it reads tables of the servers in this process",
    "recover": "it looks at ZooKeeper, the segment store and all servers from here, and asks as it goes",
    **dict.fromkeys(
        (
            f"migrate {step}"
            for step in ("plan", "start", "run", "status", "rehearse", "switch", "back", "finish", "certificate")
        ),
        _SERVERS,
    ),
    "schema show": _SCHEMA,
    "schema set": _SCHEMA,
    "schema reload": _SCHEMA,
    "segments": _STORE,
    "tail": _STORE,
    "snapshot show": _STORE,
    "serve": "it is a server of its own, next to the segment store",
    "source archive": "it reads the log of the server from here",
    "state copy": "it reads and writes both stores in this process",
    "subscriptions delete": "the API only shows subscriptions",
    "targets commit": "it loads batches in this process",
    "targets maintain": "it works on the files of targets in this process; the DAG sluice_retention does it every hour",
}  # fmt: skip
"""Command that is no verb -> :data:`THROUGH`, :data:`HERE`, or why it cannot go through the API."""

_chosen: PageApi | None = None
"""The API that commands go through; None: they go by themselves."""


class Service(Protocol):
    """Interface through which commands reach pipelines, wherever these are. Each method raises SluiceError."""

    def act(self, pipeline: str, action: str, order: Mapping[str, Any], *, dry_run: bool = False) -> ActionPlan:
        """Carry an action out, or return its plan."""

    def plan(self, pipeline: str, action: str, order: Order) -> Plan:
        """Return the plan of an action, with its cost; nothing is changed."""

    def move_group(self, kind: str, group: str, order: Mapping[str, Any], *, dry_run: bool) -> Iterator[GroupMove]:
        """Move the pipelines of a source or target group, and yield each answer. ``order``: see
        :func:`sluice.operations.groups.move_group`; ``pipelines``: only these of the group.
        """

    def audit(self, pipeline: str) -> list[dict[str, Any]]:
        """Return what people did to a pipeline, oldest first."""

    def alerts(self, pipeline: str) -> dict[str, Any]:
        """Return the alert rules, as :func:`sluice.operations.alert_rules.listed` does."""

    def check(self, pipeline: str) -> dict[str, Any]:
        """Return the report of a check as JSON."""

    def statuses(self, pipeline: str | None) -> list[Status | dict[str, Any]]:
        """Return the status of one pipeline or of all; of a file that is not valid a dictionary with ``errors``."""

    def subscriptions(self, pipeline: str) -> list[SubscriptionStatus]:
        """Return the readers of a pipeline."""

    def start_dump(self, pipeline: str, request: Mapping[str, Any], tuning: Mapping[str, Any], *, overwrite: bool,
                   dry_run: bool) -> Dump | ActionPlan:  # fmt: skip
        """Begin a dump, or only say what it would be. A plan: others read its chunks."""

    def dumps(self, pipeline: str) -> list[DumpView]:
        """Return all dumps, oldest first."""

    def dump(self, pipeline: str, dump: str) -> DumpView:
        """Return one dump; "": the newest that has not ended."""

    def steer_dump(self, pipeline: str, change: str, dump: str, changes: Mapping[str, Any]) -> DumpView:
        """Pause, resume, cancel or tune a dump."""

    def watching(self, pipeline: str) -> AbstractContextManager[Any]:
        """Return a context in which the same pipeline is asked again and again."""

    def letters(self, pipeline: str, *, everything: bool) -> list[DeadLetter]:
        """Return the dead letters, oldest first."""

    def letter(self, pipeline: str, letter_id: str) -> tuple[DeadLetter, dict[str, Any]]:
        """Return a dead letter, and its row as it is (``row``) and was (``before``)."""

    def waiting_letters(self, pipeline: str, ids: Sequence[str]) -> list[DeadLetter]:
        """Return those of the letters that wait; no ids: all."""

    def replay(self, pipeline: str, ids: Sequence[str], target: str | None, *, dry_run: bool) -> list[ReplayOutcome]:
        """Deliver dead letters."""

    def discard(self, pipeline: str, ids: Sequence[str], reason: str) -> list[DeadLetter]:
        """Settle dead letters without delivering them."""

    def verify(self, pipeline: str, request: Mapping[str, Any], on_progress: Told) -> VerifyResult:
        """Compare, and repair if that is asked for. ``request``: fields of ``VerifySpec``; ``sample`` may be None."""

    def results(self, pipeline: str) -> list[VerifyResult]:
        """Return the last verifications, oldest first."""

    def result(self, pipeline: str, name: str) -> VerifyResult:
        """Return one verification; "": the newest."""

    def channels(self) -> list[dict[str, Any]]:
        """Return all channels."""

    def channel(self, name: str) -> dict[str, Any]:
        """Return one channel."""

    def conflicts(self, name: str) -> dict[str, Any]:
        """Return the conflicts of a channel."""


def choose(api: str, *, allow_http: bool = False) -> None:
    """Send commands to the API at ``api``, a URL or a connection; "" sends them to ZooKeeper. Raises ConfigError."""
    global _chosen
    _chosen = None
    if api:
        from sluice.cli.through_api import PageApi

        _chosen = PageApi.named(api, allow_http=allow_http)


def service() -> Service:
    """Return the way that this command goes."""
    if _chosen is not None:
        return _chosen
    from sluice.cli.direct import Direct

    return Direct()


def guarded(name: str, command: Any) -> Any:
    """Let the commands below ``command`` end with the reason where they cannot go through the API."""
    for below, subcommand in (getattr(command, "commands", None) or {}).items():
        guarded(f"{name} {below}", subcommand)
    if command.callback is not None and not getattr(command, "commands", None):
        command.callback = _guard(name, command.callback)
    return command


def _guard(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def run(*args: Any, **options: Any) -> Any:
        require_reach(name)
        return call(*args, **options)

    return run


def reach() -> Mapping[str, str]:
    """Return how far each command reaches, see :data:`REACH`; every verb goes through the API."""
    from sluice.operations.verbs.table import VERBS

    return {**REACH, **{verb.command.words: THROUGH for verb in VERBS.values() if verb.command is not None}}


def require_reach(name: str, why: str = "") -> None:
    """Raise ConfigError if commands go through the API and this one cannot. ``why``: one of its options cannot."""
    if _chosen is None:
        return
    obstacle = why or reach().get(name, "the API has nothing of the kind")
    if obstacle in {THROUGH, HERE}:
        return
    raise ConfigError(
        f"`sluice {name}` cannot go through the API of the page: {obstacle}",
        where=_chosen.url,
        hint="run it without --api and SLUICE_API, where ZooKeeper and the servers can be reached; docs/page.md lists "
        "what goes through the API",
    )
