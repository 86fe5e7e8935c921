"""The tables of environment variables and of connections in docs/deploy.md, made of :mod:`sluice.config.surroundings`.

``python -m tests.support.documents.surroundings_tables`` (``make docs``) writes them again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sluice.config.surroundings import CONNECTIONS, OTHERS, VARIABLES

PAGE = Path(__file__).parents[3] / "docs" / "deploy.md"
COMMAND = "make docs"
_MARK = f"<!-- The next table is written by `{COMMAND}`: {{}} of sluice.config.surroundings. -->"
END = "<!-- end of the table -->"


def _variables() -> str:
    lines = ["| Variable | Who reads it | Without it | Meaning |", "|---|---|---|---|"]
    lines += [f"| `{one.name}` | {one.readers} | {one.default} | {one.meaning} |" for one in (*VARIABLES, *OTHERS)]
    return "\n".join(lines)


def _connections() -> str:
    lines = ["| Key in the file | Id without it | Airflow's type | Who reads it |", "|---|---|---|---|"]
    lines += [f"| `{one.key}` | {one.default} | {one.types} | {one.readers} |" for one in CONNECTIONS]
    return "\n".join(lines)


TABLES = {"VARIABLES": _variables, "CONNECTIONS": _connections}


def renewed(text: str) -> str:
    """Return the page with the tables as they are now. Raises ValueError if the page lacks a mark."""
    for name, made in TABLES.items():
        begin = _MARK.format(name)
        head, _, rest = text.partition(begin)
        _, found, tail = rest.partition(END)
        if not found:
            raise ValueError(f"docs/deploy.md lacks {begin!r}, or {END!r} after it")
        text = f"{head}{begin}\n\n{made()}\n\n{END}{tail}"
    return text


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: written\n")
