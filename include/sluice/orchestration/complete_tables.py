"""Complete tables in Airflow: the tasks that tell of them as asset events, and the sensor that any DAG may use.

Decision: a run for each time tells of it, and not the acknowledgement of a batch: only a task can emit an event, and an
idle table has no batch. The run is opened at the time itself and waits in the triggerer, without a worker. So the grid
of its DAG shows which days are complete.

Decision: the events belong to assets of their own (``complete+mysql://…``). A DAG that waits for a table itself is
opened by each run that brought rows, and one that waits for complete days must not be.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from airflow.sdk import Asset, AssetAlias, BaseSensorOperator
from airflow.sdk.configuration import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from sluice.errors import SluiceError
from sluice.orchestration.assets import GROUP
from sluice.orchestration.operators import SluiceOperator
from sluice.orchestration.retry import boundary
from sluice.orchestration.runtime import claim, open_runtime
from sluice.orchestration.triggers import wait_until

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.flows.runtime import Runtime
    from sluice.operations.completeness import TableState, TableWatch

_log = structlog.get_logger()
_LOOK_EVERY_S = (0.5, 2.0, 5.0)
_SENSOR_LOOK_S = 2.0
_SHOWN = 20
_SESSION_S = 10.0

_told: dict[str, list[str]] = {}
"""The addresses that this process told of, by claim, until its success is noted."""


def complete_outlet(pipeline: str, target: str) -> AssetAlias:
    """Return the alias of the assets that tell of complete times: ``sluice-complete:PIPELINE.TARGET``."""
    return AssetAlias(f"sluice-complete:{pipeline}.{target}", group=GROUP)


def other_runtimes(pipeline: str) -> list[Runtime]:
    """Open the other pipelines of the folder; those whose file is not valid do not run, and do not count."""
    from sluice.config.loading import yaml_files

    own_path, runtimes = Path(pipeline).resolve(), []
    for path in yaml_files(own_path.parent):
        if path.resolve() != own_path:
            with suppress(SluiceError):
                runtimes.append(open_runtime(str(path)))
    return runtimes


def open_watch(pipeline: str, target: str, until_us: int, runtime: Runtime | None = None) -> TableWatch:
    """Return what tells whether the tables of a target are complete, whoever writes them."""
    from sluice.operations.completeness import watch

    return watch(runtime or open_runtime(pipeline), target, until_us, other_runtimes(pipeline))


def left_over(watch: TableWatch, states: Sequence[TableState], *, late: bool) -> list[str]:
    """Return what is waited for; empty: nothing. Tables that wait for more than the log are left to the later task."""
    if not watch.is_settled:
        return ["the source is still committing what began before"]
    return [state.why for state in states if state.why and (late or not state.is_blocked)]


class CompleteOperator(SluiceOperator):
    """Waits until the tables of a target hold all that was committed before the end of the run's interval, and tells of
    each.

    Args:
        target: name of the target.
        late: it tells of the tables that the task before it left over: a copy of them ran, or they lacked rows. It
            gives up when the next run's time has come, which tells of them then.
    """

    ui_color = "#e8daef"

    def __init__(self, *, target: str, late: bool = False, **kwargs: Any) -> None:
        super().__init__(on_success_callback=note_success, **kwargs)
        self.target = target
        self.late = late

    def work(self, context: Context, **_: Any) -> dict[str, Any]:
        """Look, and tell of the complete tables, or wait."""
        from sluice.operations.completeness import complete_uri, take

        run: Any = context["dag_run"]
        until, every = run.data_interval_end, run.data_interval_end - run.data_interval_start
        seen_watch = open_watch(self.pipeline, self.target, _microseconds(until))
        states = list(seen_watch.look().values())
        reasons = left_over(seen_watch, states, late=self.late)
        if reasons and not (self.late and datetime.now(UTC) >= until + every):
            self.log.info("%d tables are not complete up to %s: %s", len(reasons), until, reasons[0])
            self.wait(CompleteTrigger(self.pipeline, self.target, _microseconds(until), self.late))
        own_claim = self._claim(context)
        complete = take(seen_watch, states, own_claim)
        _told[own_claim] = [state.uri for state in complete]
        accessor = context["outlet_events"][complete_outlet(seen_watch.writer.runtime.name, self.target)]
        for state in complete:
            accessor.add(Asset(uri=complete_uri(state.uri), group=GROUP), extra=seen_watch.details(state))
        self.log.info(
            "complete up to %s: %s", until, ", ".join(state.uri for state in complete[:_SHOWN]) or "no further table"
        )
        for state in states:
            if state.why:
                self.log.warning("%s is not complete: %s", state.uri, state.why)
        return {"until": until.isoformat(), "tables": len(complete), "left": sum(bool(state.why) for state in states)}

    def _claim(self, context: Any) -> str:
        return f"{claim(context['ti'].dag_id, context['ti'].run_id)}:{self.task_id}"


def note_success(context: Any) -> None:
    """Note that the events of a task are sent: Airflow stores them with its success, and calls this after it."""
    from sluice.operations.completeness import confirm

    task = context["task"]
    own_claim = f"{claim(context['ti'].dag_id, context['ti'].run_id)}:{task.task_id}"
    uris = _told.pop(own_claim, [])
    if uris:
        with suppress(SluiceError):  # only a Clear of this task would tell again
            confirm(open_runtime(task.pipeline), uris, _microseconds(context["dag_run"].data_interval_end), own_claim)


def _microseconds(at: datetime) -> int:
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


class CompleteTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires when the tables of a target are complete up to a time, or the next time has come.

    Args:
        pipeline: path of the pipeline file.
        target: name of the target.
        until_us: microseconds since 1970.
        late: wait also for tables that lack more than the log.
    """

    def __init__(self, pipeline: str, target: str, until_us: int, late: bool = False) -> None:
        super().__init__()
        self.pipeline, self.target, self.until_us, self.late = pipeline, target, until_us, late

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that Airflow stores."""
        arguments = {"pipeline": self.pipeline, "target": self.target, "until_us": self.until_us, "late": self.late}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire when nothing is left to wait for."""
        current: list[tuple[Runtime, TableWatch, timedelta]] = []

        def over(opened: Runtime) -> bool:
            if not current or current[0][0] is not opened:
                complete = opened.pipeline.complete
                every = complete.every if complete is not None else timedelta(0)
                current[:] = [(opened, open_watch(self.pipeline, self.target, self.until_us, opened), every)]
            _, seen_watch, every = current[0]
            if not left_over(seen_watch, list(seen_watch.look().values()), late=self.late):
                return True
            return self.late and datetime.now(UTC).timestamp() * 1e6 >= self.until_us + every.total_seconds() * 1e6

        yield TriggerEvent(await wait_until(self.pipeline, over, look_every_s=_LOOK_EVERY_S))


# -- for the DAGs of everybody -----------------------------------------------------------------------------------------


class SluiceTableSensor(BaseSensorOperator):  # type: ignore[misc]
    """Waits until a target table holds all that was committed before a time. It asks ZooKeeper only.

    A pipeline that writes the table has to say ``complete:``.

    Args:
        uri: address of the table, as its asset has it: ``mysql://db:3306/shop/orders``.
        until: a time with its zone, ISO 8601; the default is the end of the run's data interval.
        zookeeper_conn_id: connection of the ensemble.
        root: ``coordination.root`` of the pipelines.
        deferrable: wait in the triggerer, without a worker.
    """

    template_fields: Sequence[str] = ("uri", "until")

    def __init__(
        self,
        *,
        uri: str,
        until: str = "{{ data_interval_end.isoformat() }}",
        zookeeper_conn_id: str = "zookeeper_default",
        root: str = "/data/sync",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=True),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.uri = uri
        self.until = until
        self.zookeeper_conn_id = zookeeper_conn_id
        self.root = root
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Look once, and wait if the table is not complete."""
        if not self.deferrable:
            return super().execute(context)
        if not self.poke(context):
            trigger = TableCompleteTrigger(self.uri, _time(self.until), self.zookeeper_conn_id, self.root)
            self.defer(trigger=trigger, method_name="woken", timeout=timedelta(seconds=self.timeout))
        return None

    def woken(self, context: Context, event: Any = None) -> None:
        """Go on after the trigger fired. Raises what it met."""
        if event and event != "complete":
            with boundary():
                completed_until(self.uri, self.zookeeper_conn_id, self.root)  # shows the error as one message
            self.execute(context)

    def poke(self, context: Context) -> bool:
        """Return True if the table is complete."""
        with boundary():
            complete_until = completed_until(self.uri, self.zookeeper_conn_id, self.root)
        return complete_until >= _time(self.until)


class TableCompleteTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires when a table is complete up to a time.

    Args:
        uri: address of the table.
        until_us: microseconds since 1970.
        zookeeper_conn_id: connection of the ensemble.
        root: ``coordination.root`` of the pipelines.
    """

    def __init__(self, uri: str, until_us: int, zookeeper_conn_id: str, root: str) -> None:
        super().__init__()
        self.uri, self.until_us, self.zookeeper_conn_id, self.root = uri, until_us, zookeeper_conn_id, root

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that Airflow stores."""
        arguments = {"uri": self.uri, "until_us": self.until_us}
        arguments |= {"zookeeper_conn_id": self.zookeeper_conn_id, "root": self.root}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire when the table is complete, or when ZooKeeper cannot be asked."""
        await asyncio.sleep(1.0)  # see triggers._SETTLE_S
        stack = ExitStack()
        try:
            kept_thread = await asyncio.to_thread(_opened, stack, self.zookeeper_conn_id, self.root)
            while (await asyncio.to_thread(kept_thread.read, self.uri)).until_us < self.until_us:
                await asyncio.sleep(_SENSOR_LOOK_S)
            yield TriggerEvent("complete")
        except SluiceError as error:
            _log.warning("table_check_failed", uri=self.uri, error=str(error))
            yield TriggerEvent("trouble")
        finally:
            await asyncio.to_thread(stack.close)


def _opened(stack: ExitStack, conn_id: str, root: str) -> Any:
    from sluice.coordination.completions import Completions
    from sluice.coordination.connecting import connect
    from sluice.orchestration.connections import from_airflow

    return Completions(stack.enter_context(connect(from_airflow(conn_id), session_timeout_s=_SESSION_S)), root)


def completed_until(uri: str, conn_id: str, root: str) -> int:
    """Return up to which time a table is complete, in microseconds since 1970; 0: not known. Raises SluiceError."""
    with ExitStack() as stack:
        return int(_opened(stack, conn_id, root).read(uri).until_us)


def _time(text: str) -> int:
    """Return microseconds since 1970 of a time in ISO 8601. Raises ValueError without a zone."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"until is {text!r}: write the time with its zone, such as 2026-11-26T00:00:00+01:00")
    return _microseconds(at.astimezone(UTC))
