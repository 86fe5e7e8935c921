"""A server that goes down is waited for, whether the connection was encrypted or not."""

from __future__ import annotations

import psycopg
import pytest

from sluice.postgresql.connection import is_about_tls, is_gone


@pytest.mark.parametrize(
    ("words", "about_tls"),
    [
        ("connection failed: server sent an error response during SSL exchange", False),
        ("consuming input failed: SSL connection has been closed unexpectedly", False),
        ("SSL SYSCALL error: EOF detected", False),
        ("server does not support SSL, but SSL was required", True),
        ("SSL error: certificate verify failed", True),
    ],
)
def test_a_lost_connection_is_no_disagreement_about_tls(words: str, about_tls: bool) -> None:
    error = psycopg.OperationalError(words)
    assert is_about_tls(error) is about_tls
    assert is_gone(error)
