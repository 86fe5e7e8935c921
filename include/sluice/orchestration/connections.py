"""Airflow connections as endpoints."""

from __future__ import annotations

import structlog

from sluice.config.connections import Endpoint, from_environment
from sluice.errors import MissingConnection

log = structlog.get_logger()


def from_airflow(connection_id: str) -> Endpoint:
    """Resolve as Airflow does (environment, secrets backend, database); password and secret extras are masked in logs.

    Works in a task, in the triggerer (from a thread) and in the API server. Raises MissingConnection where Airflow knows no such connection.
    """
    from airflow.sdk.bases.hook import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

    try:
        found = BaseHook.get_connection(connection_id)
    except (AirflowNotFoundException, AirflowRuntimeError) as error:
        log.debug("connection_not_in_airflow", connection=connection_id, error=type(error).__name__)
        try:
            return _masked(from_environment(connection_id))
        except MissingConnection as missing:
            name = f"AIRFLOW_CONN_{connection_id.upper()}"
            missing.hint = (
                f"set {name} for all of Airflow's processes to a URI or to JSON, add it to the secrets backend, or `airflow connections add "
                f"{connection_id}`; the form under Admin > Connections has types of installed providers only, and `generic` does for all of them"
            )
            raise
    return _masked(
        Endpoint(
            connection_id=connection_id,
            kind=found.conn_type or "",
            host=found.host or "",
            port=found.port,
            user=found.login or "",
            password=found.password or "",
            schema=found.schema or "",
            extra=found.extra_dejson or {},
        )
    )


def _masked(endpoint: Endpoint) -> Endpoint:
    from airflow.sdk.log import mask_secret

    if endpoint.password:
        mask_secret(endpoint.password)
    if endpoint.extra:
        mask_secret(dict(endpoint.extra))
    return endpoint
