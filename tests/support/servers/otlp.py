"""Receivers of OpenTelemetry's protocol (OTLP over HTTP with Protobuf, and over gRPC) in the test's process, on loopback."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from sluice.operations import otel_metrics
from sluice.telemetry import export


@dataclass(frozen=True)
class Span:
    """A span as it arrived."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    begin_ns: int
    end_ns: int
    failed: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass(frozen=True)
class Point:
    """A value as it arrived; ``counter``: of a cumulative sum that only grows."""

    name: str
    unit: str
    labels: dict[str, Any]
    value: float
    counter: bool


@dataclass
class Receiver:
    """What arrived."""

    url: str
    spans: list[Span] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    requests: int = 0

    def take(self, path: str, body: bytes) -> None:
        if path.endswith("/v1/traces"):
            self.take_spans(ExportTraceServiceRequest.FromString(body))
        else:
            self.take_points(ExportMetricsServiceRequest.FromString(body))

    def take_spans(self, request: ExportTraceServiceRequest) -> None:
        self.requests += 1
        for resource in request.resource_spans:
            of = _attributes(resource.resource.attributes)
            self.spans += [_span(span, of) for scope in resource.scope_spans for span in scope.spans]

    def take_points(self, request: ExportMetricsServiceRequest) -> None:
        self.requests += 1
        for found in request.resource_metrics:
            self.points += [p for scope in found.scope_metrics for metric in scope.metrics for p in _points(metric)]

    def of_batch(self, number: int) -> list[Span]:
        return [span for span in self.spans if span.attributes.get("sluice.batch") == number]


def _attributes(found: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in found}


def _span(span: Any, resource: dict[str, Any]) -> Span:
    failed = span.status.message if span.status.code == 2 else ""
    times = span.start_time_unix_nano, span.end_time_unix_nano
    ids = span.trace_id, span.span_id, span.parent_span_id
    return Span(span.name, *ids, *times, failed, _attributes(span.attributes), resource)


def _points(metric: Any) -> Iterator[Point]:
    data = getattr(metric, metric.WhichOneof("data"))
    counter = metric.WhichOneof("data") == "sum" and data.is_monotonic and data.aggregation_temporality == 2
    for point in data.data_points:
        value = float(getattr(point, point.WhichOneof("value")))
        yield Point(metric.name, metric.unit, _attributes(point.attributes), value, counter)


def flush() -> None:
    """All that waits is sent, however slow the machine is."""
    export.flush(120)


def forget() -> None:
    """What the process made of an environment that is over."""
    export.forget()
    otel_metrics.forget()


@contextmanager
def unset() -> Iterator[pytest.MonkeyPatch]:
    """An environment without a word of OpenTelemetry."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("OTEL_")]:
            patch.delenv(name)
        forget()
        yield patch
    forget()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver; other processes find it by its URL."""
    made: list[Receiver] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made[0].take(self.path, gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.append(Receiver(f"http://127.0.0.1:{server.server_port}"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made[0]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def grpc_receiver() -> Iterator[Receiver]:
    """A receiver of OTLP over gRPC, with the services' own stubs."""
    import grpc
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

    server = grpc.server(ThreadPoolExecutor(2))
    made = Receiver(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")

    class Traces(trace_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
            made.take_spans(request)
            return ExportTraceServiceResponse()

    class Metrics(metrics_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> ExportMetricsServiceResponse:
            made.take_points(request)
            return ExportMetricsServiceResponse()

    trace_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    server.start()
    try:
        yield made
    finally:
        server.stop(None).wait(30)


@contextmanager
def otlp_receiver(**variables: str) -> Iterator[Receiver]:
    """A receiver that the environment of this process names, with further variables."""
    made_by = grpc_receiver if variables.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" else receiver
    with made_by() as made, unset() as patch:
        for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": made.url, **variables}.items():
            patch.setenv(name, value)
        yield made
