"""The table of metrics in docs/monitor.md, made of :data:`sluice.operations.metrics.METRICS`.

``python -m tests.support.documents.metrics_table`` (``make docs``) writes it again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sluice.operations.metrics import METRICS, VERSION_METRIC

PAGE = Path(__file__).parents[3] / "docs" / "monitor.md"
COMMAND = "make docs"
BEGIN = f"<!-- The next table is written by `{COMMAND}`: sluice.operations.metrics has the list. -->"
END = "<!-- end of the table of metrics -->"


def table() -> str:
    """Return the table, a line for each metric."""
    lines = ["| Name | Kind | Unit | Labels | Meaning | Airflow's StatsD, OpenTelemetry |", "|---|---|---|---|---|---|"]
    for one in METRICS:
        labels = ", ".join(f"`{label}`" for label in ("pipeline", *one.labels))
        old = f"`sluice.{one.statsd.replace('{', '').replace('}', '')}`" if one.statsd else ""
        lines.append(f"| `{one.name}` | {one.kind} | {one.unit} | {labels} | {one.meaning} | {old} |")
    lines.append(f"| `{VERSION_METRIC}` | gauge |  | `version` | 1 |  |")
    return "\n".join(lines)


def renewed(text: str) -> str:
    """Return the page with the table as it is now. Raises ValueError if the page lacks the two marks."""
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"docs/monitor.md lacks {BEGIN!r} or {END!r}")
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: written\n")
