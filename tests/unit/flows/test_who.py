"""Who did it, for the audit."""

from __future__ import annotations

import getpass
import os
import socket
from typing import NoReturn

import pytest

from sluice.operations.control import who


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 50123"), OSError("No username set")])
def test_a_user_number_without_a_name_is_no_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """In a container that runs under any number; which error it is depends on the version of Python."""

    def unnamed() -> NoReturn:
        raise error

    monkeypatch.setattr(getpass, "getuser", unnamed)
    assert who() == f"uid-{os.getuid()}@{socket.gethostname()}"
