"""Exporters of OpenTelemetry's own SDK that delay nothing: imported only if the environment asks for one.

Spans and metrics wait in the bounded queues of the SDK and are sent by threads of its own. An endpoint that fails gives
one log line and is left alone for :data:`PAUSE_S`; what is sent meanwhile is dropped. The providers are those of Sluice
and not the global ones, which may be of Airflow.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from sluice import __version__
from sluice.model.client_packages import install_command
from sluice.telemetry.settings import Signal, has_service_name, uses_grpc

_log = structlog.get_logger()

PAUSE_S = 30.0
"""Seconds for which nothing is sent to an endpoint that failed."""
FLUSH_S = 1.0
"""Seconds that the end of a piece of work waits for what it told to be sent, at most."""
_EXPORTERS = "opentelemetry.exporter.otlp"


class _Sending(threading.local):
    gate: Gate | None = None


_sending = _Sending()


@dataclass
class Gate:
    """The way to the endpoint of one signal: says once that it fails, and leaves it alone for a while then.

    Attributes:
        over: of the process that made the gate; set when its endpoint fails.
    """

    signal: Signal
    over: threading.Event
    pid: int = field(default_factory=os.getpid)
    is_failing: bool = False
    reason: str = ""
    _said: bool = False
    _not_before: float = 0.0

    def send(self, call: Callable[[], Any]) -> Any:
        """Return what ``call`` returns; None if it raises or is not made.

        A forked child sends nothing of its parent's.
        """
        if os.getpid() != self.pid or time.monotonic() < self._not_before:
            return None
        _sending.gate, result = self, None
        try:
            result = call()
        except Exception as error:  # whatever a transport raises
            self.reason = f"{type(error).__name__}: {error}"
        finally:
            _sending.gate = None
        if getattr(result, "name", "") == "SUCCESS":
            self.is_failing = False
            return result
        self._not_before = time.monotonic() + PAUSE_S
        self.met(self.reason)
        self.say()
        return result

    def met(self, reason: str) -> None:
        """Note that a request failed, which the exporter may try again: nobody waits for that."""
        self.is_failing, self.reason = True, reason
        self.over.set()

    def say(self) -> None:
        """Log once that the endpoint does not take what it is sent."""
        if self.is_failing and not self._said:
            self._said = True
            where, login = _endpoint(self.signal)
            why = self.reason or "it refused the request"
            why = why.replace(login, "") if login else why  # gRPC takes a login for a part of the host's name
            _log.warning("telemetry_export_failed", signal=self.signal, endpoint=where, error=why[:300])


def _endpoint(signal: Signal) -> tuple[str, str]:
    """Return the endpoint for the log, without a login, and the login with its ``@``."""
    configured = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    where = configured or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "the default")
    scheme, separator, rest = where.partition("://")
    login, at, host = rest.rpartition("@")
    return (f"{scheme}://{host}" if separator else where), login + at


@dataclass
class _Process:
    """The providers, gates and flushes of this process.

    Attributes:
        over: set when a flush has nothing left to wait for.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    gates: dict[Signal, Gate] = field(default_factory=dict)
    flushes: dict[Signal, Callable[[], Any]] = field(default_factory=dict)
    made: dict[Signal, Any] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)


_process = _Process()


def forget() -> None:
    """Make providers of its own in a forked child."""
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=forget)


class _Reasons(logging.Handler):
    """Takes what OpenTelemetry's exporters log about what Sluice sends; passes on what they log for others."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the last message as the reason of a failure."""
        if _sending.gate is not None:
            _sending.gate.reason = record.getMessage()
        elif (parent := logging.getLogger(_EXPORTERS).parent) is not None:
            parent.handle(record)


def _listen() -> None:
    logger = logging.getLogger(_EXPORTERS)
    if not any(isinstance(handler, _Reasons) for handler in logger.handlers):
        logger.addHandler(_Reasons())
        logger.propagate = False


def _session(gate: Gate) -> Any:
    """Return a session of requests that tells ``gate`` at once of a connection that cannot be made."""
    import requests

    class Session(requests.Session):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().request(*args, **kwargs)
            except requests.RequestException as error:
                gate.met(f"{type(error).__name__}: {error}")
                raise

    return Session()


def exporter(signal: Signal, **options: Any) -> Any:
    """Return the exporter that the environment asks for, behind its gate. Raises ImportError if it is not installed."""
    way = "grpc" if uses_grpc(signal) else "http"
    name = {"traces": "trace_exporter", "metrics": "metric_exporter"}[signal]
    module = importlib.import_module(f"{_EXPORTERS}.proto.{way}.{name}")
    base: Any = module.OTLPSpanExporter if signal == "traces" else module.OTLPMetricExporter
    gate = _process.gates[signal] = Gate(signal, _process.over)
    _listen()

    class Guarded(base):  # type: ignore[misc]
        def export(self, *args: Any, **kwargs: Any) -> Any:
            sent = gate.send(lambda: super(Guarded, self).export(*args, **kwargs))
            return failure if sent is None else sent

    if signal == "traces":
        from opentelemetry.sdk.trace.export import SpanExportResult

        failure: Any = SpanExportResult.FAILURE
    else:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        failure = MetricExportResult.FAILURE
    return Guarded(**({"session": _session(gate)} if way == "http" else {}), **options)


def resource() -> Any:
    """Return the resource of this process: as ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` say, else
    ``sluice``.
    """
    from opentelemetry.sdk.resources import Resource

    own = {"service.version": __version__}
    return Resource.create(own if has_service_name() else {"service.name": "sluice", **own})


def provider(signal: Signal, make: Callable[[], tuple[Any, Callable[[], Any]]]) -> Any:
    """Return what ``make`` made for ``signal`` in this process: the provider, and what flushes it.

    None if OpenTelemetry is not installed or its configuration is invalid, which is logged once.
    """
    with _process.lock:
        if signal not in _process.made:
            try:
                _process.made[signal], _process.flushes[signal] = make()
            except ImportError as error:
                _process.made[signal] = None
                _log.warning(
                    "telemetry_unavailable", signal=signal, error=str(error), hint=f"`{install_command('otel')}`"
                )
            except Exception as error:  # whatever the SDK makes of invalid variables
                _process.made[signal] = None
                _log.warning("telemetry_unavailable", signal=signal, error=f"{type(error).__name__}: {error}"[:300])
        return _process.made[signal]


def flush(within_s: float = FLUSH_S) -> None:
    """Send what waits, for ``within_s`` at most, and not at all to an endpoint that fails."""
    process = _process
    waiting = [
        send
        for signal, send in list(process.flushes.items())
        if signal not in process.gates or not process.gates[signal].is_failing
    ]
    if not waiting:
        return
    process.over.clear()

    def send_all() -> None:
        for send in waiting:
            send()
        process.over.set()

    threading.Thread(target=send_all, name="telemetry-flush", daemon=True).start()
    process.over.wait(within_s)
    for gate in list(process.gates.values()):
        gate.say()


class _NextIds(threading.local):
    ids: tuple[int, int] | None = None


_next = _NextIds()


@contextmanager
def next_ids(trace_id: int, span_id: int) -> Iterator[None]:
    """Give the span that this thread starts in the block these ids."""
    _next.ids = (trace_id, span_id)
    try:
        yield
    finally:
        _next.ids = None


@dataclass(frozen=True, slots=True)
class Tracer:
    """A tracer, and the sampler's decision by trace."""

    tracer: Any
    sampler: Any

    def samples(self, trace_id: int) -> bool:
        """Return True if the sampler takes a trace; it decides by the id, so that all processes decide alike."""
        from opentelemetry.context import Context

        return bool(self.sampler.should_sample(Context(), trace_id, "drain").decision.is_sampled())


def tracer() -> Tracer | None:
    """Return the tracer of this process; made at first use. None: there is none, and that was logged."""
    cached: Tracer | None = provider("traces", _make_tracer)
    return cached


def _make_tracer() -> tuple[Tracer, Callable[[], Any]]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            return _next.ids[0] if _next.ids else super().generate_trace_id()

        def generate_span_id(self) -> int:
            return _next.ids[1] if _next.ids else super().generate_span_id()

    tracers = TracerProvider(resource=resource(), id_generator=Ids(), shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(exporter("traces")))
    return Tracer(tracers.get_tracer("sluice", __version__), tracers.sampler), tracers.force_flush
