"""Airflow connections as endpoints."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote, urlsplit

import structlog

from sluice.config.connections import Endpoint, from_environment, kind_of
from sluice.config.credentials import hide_from
from sluice.errors import ConfigError, MissingConnection

log = structlog.get_logger()


def from_airflow(connection_id: str) -> Endpoint:
    """Resolve as Airflow does (environment, secrets backend, database); password and secret extras are masked in logs.

    A Spark Connect server is found by the hook of Airflow's Spark provider, as its own operators find it.

    Works in a task, in the triggerer (from a thread) and in the API server. Raises MissingConnection where Airflow
    knows no such connection, ConfigError for a connection that the provider refuses.
    """
    from airflow.sdk.bases.hook import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

    try:
        connection = BaseHook.get_connection(connection_id)
    except (AirflowNotFoundException, AirflowRuntimeError) as error:
        log.debug("connection_not_found", connection=connection_id, error=type(error).__name__)
        try:
            return _masked(from_environment(connection_id))
        except MissingConnection as missing:
            name = f"AIRFLOW_CONN_{connection_id.upper()}"
            missing.hint = (
                f"set {name} for all of Airflow's processes to a URI or to JSON, add it to the secrets backend, or "
                "`airflow connections add "
                f"{connection_id}`; the form under Admin > Connections has types of installed providers only, and "
                "`generic` does for all of them"
            )
            raise
    endpoint = Endpoint(
        connection_id=connection_id,
        kind=kind_of(connection.conn_type or ""),
        host=connection.host or "",
        port=connection.port,
        user=connection.login or "",
        password=connection.password or "",
        schema=connection.schema or "",
        extra=connection.extra_dejson or {},
    )
    return _masked(_by_the_spark_provider(endpoint) if endpoint.kind == SPARK_CONNECT else endpoint)


SPARK_CONNECT = "spark_connect"
"""The connection type of a Spark Connect server in Airflow's Spark provider."""


def _by_the_spark_provider(endpoint: Endpoint) -> Endpoint:
    """Return the server, user, token and TLS setting that the provider's hook derives from the connection.

    Raises ConfigError.
    """
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

    try:
        url = urlsplit(SparkConnectHook(endpoint.connection_id).get_connection_url())
        port = url.port
    except ValueError as error:
        raise ConfigError(
            f"the connection {endpoint.connection_id} is no address of a Spark Connect server: {error}",
            hint="its host is a name or sc://NAME, without a path; port, user id, token and Use SSL have fields of "
            "their own",
        ) from None
    params = dict(part.partition("=")[::2] for part in url.path.lstrip("/;").split(";") if part)
    return replace(
        endpoint,
        host=url.hostname or "",
        port=port,
        user=unquote(params.get(SparkConnectHook.PARAM_USER_ID, "")),
        password=unquote(params.get(SparkConnectHook.PARAM_TOKEN, "")),
        extra={
            **endpoint.extra,
            **{name: unquote(params[name]) for name in params if name == SparkConnectHook.PARAM_USE_SSL},
        },
    )


def _masked(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint; what it holds of secrets reaches no log. Raises ConfigError for a file of positions."""
    from airflow.sdk.log import mask_secret

    if endpoint.kind == "sqlite":
        raise ConfigError(
            f"the connection {endpoint.connection_id} is a file, and Airflow keeps positions in ZooKeeper",
            hint="make it a connection of type zookeeper; `sluice state copy` brings the positions there",
        )
    hide_from(mask_secret)
    if endpoint.password:
        mask_secret(endpoint.password)
    if endpoint.extra:
        mask_secret(dict(endpoint.extra))
    return endpoint
