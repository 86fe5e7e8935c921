"""The note of a run, which people read in Airflow's grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from sluice.errors import RetryableError, SluiceError

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = structlog.get_logger()

API_CONNECTION = "sluice_airflow_api"
"""The name of the connection to Airflow's own REST API."""

NOTE_EVERY_S = 2.0
_LAST_ATTEMPTS = 4

MOST_NOTE = 1000
"""Characters of a note that Airflow accepts; a longer one is refused as a whole."""

_MOST_LINE = 300
"""Characters of a line of a note, so that one long message leaves room for the others."""


def fitted_note(text: str, most: int = MOST_NOTE) -> str:
    """Return a note that Airflow takes: its first lines, and how many entries more there are.

    What matters most stands in the first lines.
    """
    if len(text) <= most:
        return text
    lines = [line if len(line) <= _MOST_LINE else f"{line[: _MOST_LINE - 1]}…" for line in text.splitlines()]
    for line_count in range(len(lines), 0, -1):
        more = sum(line.startswith(("| ", "- ")) for line in lines[line_count:])
        note = "\n".join([*lines[:line_count], *([""] if more else []), *([f"and {more:,} more"] if more else [])])
        if len(note) <= most:
            return note
    return lines[0][:most]


class RunNote:
    """The note of a run, written through Airflow's own API; without the connection ``sluice_airflow_api`` there is
    none.
    """

    def __init__(self, context: Context) -> None:
        run: Any = context["dag_run"]
        self._path = f"/dags/{run.dag_id}/dagRuns/{run.run_id}"
        self._api: Any = None
        self._off = False

    def add(self, text: str) -> None:
        """Write ``text`` below the note that is there, which a person may have written; once only."""
        try:
            note = self._call("GET").get("note") or ""
        except SluiceError as error:
            _log.debug("run_note_read_failed", error=str(error))
            return
        if text not in note:
            self.write(f"{note}\n\n{text}".strip(), last=True)

    def write(self, text: str, *, last: bool = False) -> None:
        """Replace the note.

        What goes wrong with it harms nothing: a note that did not come through is skipped, and the next one is tried.

        ``last``: no other one follows, so that this one is tried several times.
        """
        if self._off:
            return
        attempts = Retrying(
            stop=stop_after_attempt(_LAST_ATTEMPTS if last else 1),
            wait=wait_fixed(NOTE_EVERY_S),
            retry=retry_if_exception_type(RetryableError),
            reraise=True,
        )
        try:
            attempts(self._call, "PATCH", {"note": fitted_note(text)})
        except RetryableError as error:
            _log.warning("run_note_write_failed", error=str(error))
        except SluiceError:  # the connection does not exist, or its login is refused
            self._off = True

    def _call(self, method: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call Airflow's API about the run. Raises SluiceError."""
        from urllib.parse import quote

        from sluice.orchestration.airflow_api import AirflowApi
        from sluice.orchestration.connections import from_airflow

        self._api = self._api or AirflowApi(from_airflow(API_CONNECTION), timeout_s=10.0)
        answer: dict[str, Any] = self._api.call(method, quote(self._path), body)
        return answer
