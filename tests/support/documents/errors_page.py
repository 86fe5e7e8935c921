"""The page of errors and alerts, docs/errors.md, made of :mod:`sluice.errors` and the alert rules.

``python -m tests.support.documents.errors_page`` (``make docs``) writes it again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sluice import errors
from sluice.model.alert_rule import AlertRule
from sluice.operations.alert_rules import MEANINGS, WAYS_ON

COMMAND = "make docs"
PAGE = Path(__file__).parents[3] / "docs" / "errors.md"
_HEAD = f"""\
# Errors and alerts

<!-- Written by `{COMMAND}`: docstrings of include/sluice/errors.py, and include/sluice/operations/alert_rules.py. -->

Every error and alert has a name of its own: in square brackets within the message, as `name` in the JSON of alerts,
of failures in `sluice status --json` and of the subscription service, and in each log event that has the text of an
error. Look it up here. `make site` builds this page with all texts of all errors.

A message has three parts: what was being done, where, and, after an arrow, what to run next. If an entry says nothing
else, nothing is lost: the position stays in front of what failed.
"""


def page() -> str:
    """Return the page as it has to be now."""
    return "\n".join([_HEAD, *_lines()])


def _lines() -> Iterator[str]:
    for kind in errors.classes():
        said = {part: _plain(text) for part, text in errors.explanation(kind).items()}
        yield f"## {kind.public_name}\n\n{said['What']}\n"
        if "Lost" in said:
            yield f"- **Lost:** {said['Lost']}"
        yield f"- **To do:** {said['To do']}"
        again = "tried again soon" if kind.retryable else "tried again slowly, never passed over"
        yield f"- `sluice.errors.{kind.__name__}`: {kind.fault.words}; {again}.\n"
    yield f"## {errors.UNFORESEEN}\n\nA library or Sluice itself failed in a way that nobody foresaw.\n"
    yield "- **To do:** Report it with the traceback of the task's log and `sluice doctor --json`."
    yield f"- Any other class: {errors.Fault.BUG.words}; tried again slowly.\n"
    for rule in AlertRule:
        yield f"## {rule.public_name}\n\n{MEANINGS[rule]}.\n\n- **To do:** {WAYS_ON[rule]}.\n"


def _plain(text: str) -> str:
    text = re.sub(r"docs/([a-z-]+\.md)(#[\w-]+)?", r"[\1](\1\2)", text)
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: written\n")
