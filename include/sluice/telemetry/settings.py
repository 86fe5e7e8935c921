"""What the standard variables of OpenTelemetry (``OTEL_...``) say; Sluice has no settings of its own for it."""

from __future__ import annotations

import os
from typing import Literal

Signal = Literal["traces", "metrics"]


def is_wanted(signal: Signal) -> bool:
    """Return True if the environment asks for ``signal``: it names an endpoint or the exporter ``otlp``."""
    env, name = os.environ, signal.upper()
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if chosen := env.get(f"OTEL_{name}_EXPORTER", "").strip():
        return "otlp" in {exporter.strip().lower() for exporter in chosen.split(",")}
    return bool(env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or env.get(f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT"))


def uses_grpc(signal: Signal) -> bool:
    """Return True if the environment asks for OTLP over gRPC; the default is HTTP with Protobuf."""
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
    return (own or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "").strip().lower() == "grpc"


def has_service_name() -> bool:
    """Return True if the environment names the service, so that ``sluice`` is not needed as its name."""
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in attributes
