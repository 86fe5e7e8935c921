"""The GRANTs and tables of privileges in the pages of MySQL and PostgreSQL, made of :mod:`sluice.mysql.rights` and
:mod:`sluice.postgresql.rights`.

``python -m tests.support.documents.rights_tables`` (``make docs``) writes them again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sluice.model.dialects import MARIADB, MYSQL
from sluice.model.rights import Right, Scope
from sluice.mysql import rights as mysql
from sluice.postgresql import rights as postgresql

DOCS = Path(__file__).parents[3] / "docs"
COMMAND = "make docs"
_MARK = f"<!-- The next lines are written by `{COMMAND}`: {{}}. -->"
END = "<!-- end of the privileges -->"
_NAMES = {None: "", MYSQL: "MySQL: ", MARIADB: "MariaDB: "}
_SCHEMAS = {
    Scope.CAPTURED: "shop", Scope.WATERMARKS: "sluice", Scope.TABLES: "reporting", Scope.CHECKPOINTS: "sluice"
}  # fmt: skip
_PG_PLACES = {
    Scope.DATABASE: 'DATABASE "shop"',
    Scope.CAPTURED: 'SCHEMA "public"',
    Scope.CAPTURED_TABLES: 'TABLE "public"."orders", "public"."customers"',
    Scope.TABLES: 'SCHEMA "reporting"',
    Scope.TARGET_TABLES: 'TABLE "reporting"."orders"',
    Scope.CHECKPOINTS: 'SCHEMA "sluice"',
    Scope.CHECKPOINT_TABLE: 'TABLE "sluice"."_sluice_ack"',
}


def _mysql(listed: Sequence[Right]) -> Callable[[], str]:
    def page() -> str:
        user = mysql.account("sluice", "%")
        lines = mysql.grants([right for right in listed if right.required], user, _SCHEMAS)
        for dialect, name in _NAMES.items():
            some = [right for right in listed if not right.required and right.only == dialect]
            lines += [
                f"{grant};  -- {name}{right.why}"
                for right in some
                for grant in mysql.grants([right], user, _SCHEMAS, dialect or MYSQL)
            ]
        return _block([line if "--" in line else f"{line};" for line in lines], listed)

    return page


def _postgresql(listed: Sequence[Right]) -> Callable[[], str]:
    def page() -> str:
        lines = []
        for right in listed:
            place = _PG_PLACES.get(right.scope)
            if place is not None:
                line = postgresql.grant(right.privileges, place, "sluice")
            elif right.privileges == ("REPLICATION",):
                line = "CREATE ROLE \"sluice\" LOGIN REPLICATION PASSWORD '…'"
            else:
                line = f'GRANT {right.privileges[0]} TO "sluice"'
            lines.append(f"{line};" + ("" if right.required else f"  -- {right.why}"))
        return _block(lines, listed)

    return page


def _block(lines: Sequence[str], listed: Sequence[Right]) -> str:
    table = ["| Privilege | On | For |", "|---|---|---|"]
    for right in listed:
        only = _NAMES.get(right.only, "")
        optional = "" if right.required else "only for "
        table.append(
            f"| `{', '.join(right.privileges).replace('OWNER', 'OWNER TO')}` | {right.scope} | {only}{optional}{right.why} |"
        )
    plain = [line.replace("[complete batches](complete.md)", "complete batches") for line in lines]
    return "\n".join(["```sql", *plain, "```", "", *table])


BLOCKS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "source.md": ("SOURCE of sluice.mysql.rights", _mysql(mysql.SOURCE)),
    "mysql-target.md": ("TARGET of sluice.mysql.rights", _mysql(mysql.TARGET)),
    "postgresql-source.md": ("SOURCE of sluice.postgresql.rights", _postgresql(postgresql.SOURCE)),
    "postgresql-target.md": ("TARGET of sluice.postgresql.rights", _postgresql(postgresql.TARGET)),
}


def renewed(page: str, text: str) -> str:
    """Return a page with its block as it is now. Raises ValueError if the page lacks a mark."""
    name, made = BLOCKS[page]
    begin = _MARK.format(name)
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"docs/{page} lacks {begin!r}, or {END!r} after it")
    return f"{head}{begin}\n\n{made()}\n\n{END}{tail}"


if __name__ == "__main__":
    for name in BLOCKS:
        path = DOCS / name
        path.write_text(renewed(name, path.read_text(encoding="utf-8")), encoding="utf-8")
        sys.stdout.write(f"{name}: written\n")
