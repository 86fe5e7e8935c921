"""A file of environment variables with the connections of an installation without Airflow.

It has a line NAME=VALUE for each variable, as systemd's ``EnvironmentFile`` and ``docker run --env-file`` read it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from sluice.errors import ConfigError

ENV_FILE = "sluice.env"
"""Its name, where `sluice new` writes it."""


def read_env_file(file: Path) -> dict[str, str]:
    """Return the variables of a file.

    Raises ConfigError for a file that cannot be read, has another line, or may be read by everybody of the machine.
    """
    try:
        text = file.read_text(encoding="utf-8")
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"the environment file {file} cannot be read: {why}", hint="`sluice new` writes such a file"
        ) from error
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ConfigError(
            f"the environment file {file} has passwords, and everybody on this machine may read or write it",
            hint=f"chmod 600 {file}",
        )
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, is_variable, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not is_variable or not name.isidentifier():
            raise ConfigError("this line is no variable", where=f"{file}:{number}", hint="write NAME=VALUE")
        variables[name] = value
    return variables


def add_to_env_file(file: Path, variables: Mapping[str, str]) -> None:
    """Write variables at the end of a file, which is created if it is missing, for its owner alone."""
    with os.fdopen(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "a", encoding="utf-8") as out:
        out.writelines(f"{name}={value}\n" for name, value in variables.items())
