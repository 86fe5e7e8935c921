"""Alerts through Airflow's notifiers: Slack, mail, PagerDuty and whatever else its providers have."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog

from sluice.errors import ConfigError, SluiceError
from sluice.operations.alert_rules import notifier_class

if TYPE_CHECKING:
    from sluice.config.pipeline import NotifierConfig
    from sluice.operations.alerts import AnyAlert

_log = structlog.get_logger()

DEADLINE_S = 10.0
"""Seconds that all notifiers together may take of a task or of the triggerer; they go on aside after it."""


def notify(notifiers: Sequence[NotifierConfig], alert: AnyAlert) -> None:
    """Tell all notifiers of an alert, side by side; one that fails or does not answer only gives a log line."""
    context = {**_of_task(), "alert": alert.to_json()}
    threads = [
        threading.Thread(target=_tell, args=(notifier, alert, dict(context)), name="notifier", daemon=True)
        for notifier in notifiers
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + DEADLINE_S
    for thread, config in zip(threads, notifiers, strict=True):
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            _failed(config, alert, f"it has not answered for {DEADLINE_S:g} s")


def _of_task() -> dict[str, Any]:
    """Return Airflow's own context in a task; nothing in the triggerer, which has none."""
    from airflow.sdk import get_current_context

    try:
        return dict(get_current_context())
    except RuntimeError:
        return {}


def _tell(config: NotifierConfig, alert: AnyAlert, context: dict[str, Any]) -> None:
    try:
        made(config)(context)
    except SluiceError as error:
        _failed(config, alert, str(error))
    except Exception as error:  # its text may hold a webhook's secret address; the notifier's own log line is masked
        _failed(config, alert, f"{type(error).__name__}; the log line of the notifier says more")


def _failed(config: NotifierConfig, alert: AnyAlert, why: str) -> None:
    _log.error("alert_send_failed", pipeline=alert.pipeline, target=alert.consumer, notifier=config.class_, error=why)


def made(config: NotifierConfig) -> Any:
    """Return the notifier. Raises ConfigError if there is no such class, it is none, or it refuses its arguments."""
    from airflow.sdk.bases.notifier import BaseNotifier

    notifier = notifier_class(config)
    if not (isinstance(notifier, type) and issubclass(notifier, BaseNotifier)):
        raise ConfigError(
            f"{config.class_} is no notifier of Airflow",
            where="alert_notifiers",
            hint="class has to be a subclass of airflow.sdk.bases.notifier.BaseNotifier",
        )
    try:
        return notifier(**config.args)
    except TypeError as error:
        raise ConfigError(
            f"the notifier {config.class_} refuses its arguments: {error}",
            where="alert_notifiers",
            hint="args has to have the arguments that its documentation lists",
        ) from None


__all__ = ["made", "notify"]
