"""Log lines of a command line are written to the standard error of the moment, not to one that was closed since."""

from __future__ import annotations

import io
import sys

import pytest
import structlog

from sluice.cli.console import log_to_stderr


def test_a_line_after_the_stream_was_replaced_is_written_to_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = io.StringIO(), io.StringIO()
    log = structlog.get_logger()
    monkeypatch.setattr(sys, "stderr", first)
    log_to_stderr(verbose=False)
    log.warning("one")
    first.close()
    monkeypatch.setattr(sys, "stderr", second)
    log.warning("two")
    assert "two" in second.getvalue()
