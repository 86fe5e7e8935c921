"""Random tables with rows, and random ALTERs of them: every target has the source's rows afterwards, or the load
stopped and named the column.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.errors import LoadError, MappingError
from sluice.operations import control
from sluice.operations.verify.verify import VerifySpec, verify
from tests.support.pipelines.case import Case
from tests.support.pipelines.kinds_apart import KINDS, pipeline
from tests.support.values.conversions import LIKELY, TYPES, family, literals

COUNT = int(os.environ.get("SLUICE_TEST_ALTERS", "100"))
"""ALTERs of each kind of target."""

SEED = os.environ.get("SLUICE_TEST_ALTERS_SEED", "1")
A_ROUND = 20
"""ALTERs between two comparisons."""

FOLLOWED = 0.3
"""Least share of the ALTERs that is followed, so that a target that stops always fails here."""

KEYS = (
    "TINYINT", "INT", "BIGINT UNSIGNED", "DECIMAL(10,2)", "DATE", "DATETIME(3)", "CHAR(5)", "VARCHAR(10)",
    "VARCHAR(40)",
    "VARCHAR(10) COLLATE utf8mb4_bin", "BINARY(4)", "VARBINARY(8)", "ENUM('a','b','c')",
)  # fmt: skip
MODES = (
    "STRICT_TRANS_TABLES",
    "",
    "NO_ENGINE_SUBSTITUTION",
    "STRICT_ALL_TABLES,PAD_CHAR_TO_FULL_LENGTH",
    "NO_BACKSLASH_ESCAPES",
)
ZONES = ("+00:00", "+02:00", "-08:00")


@dataclass
class Table:
    """A table of the source with its columns, by their names, as they are declared."""

    name: str
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> list[str]:
        """The columns beside the key."""
        return [name for name in self.columns if name != "k"]


class Writer:
    """A session at the source that makes tables, rows and ALTERs by dice."""

    def __init__(self, made: Case, cursor: Any, dice: random.Random) -> None:
        self.made, self.cursor, self.dice = made, cursor, dice

    def tries(self, sql: str) -> bool:
        """Run it; False if the server refuses."""
        try:
            self.cursor.execute(sql)
        except pymysql.MySQLError:
            return False
        return True

    def session(self, mode: str) -> None:
        """Give the session a mode and a zone of its own."""
        self.cursor.execute(f"SET sql_mode = '{mode}', time_zone = '{self.dice.choice(ZONES)}'")

    def create(self, number: int, old: str) -> Table:
        """Create a table with a key of any type, a column of the type ``old`` and another one."""
        while True:
            table = Table(f"t{number}", {"k": self.dice.choice(KEYS), "v": old, "w": self.dice.choice(TYPES)})
            listed = ", ".join(
                f"{name} {declared}{' NOT NULL' if name == 'k' else ''}" for name, declared in table.columns.items()
            )
            if self.tries(f"CREATE TABLE {table.name} ({listed}, PRIMARY KEY (k))"):
                return table

    def fill(self, table: Table, rows: int) -> None:
        """Insert those literals of their types that the columns take."""
        values = {name: [*literals(declared, self.dice), "NULL"] for name, declared in table.columns.items()}
        for _ in range(rows):
            row = [self.dice.choice(values[name]) for name in table.columns]
            self.tries(f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({', '.join(row)})")

    def alter(self, table: Table, new: str) -> tuple[str, list[str]] | None:
        """Run a statement; returns it with the columns that it means, None if the server refuses."""
        other, key = self.dice.choice(TYPES), self.dice.choice(KEYS)
        default = self.dice.choice([f" DEFAULT {one}" for one in literals(other, self.dice)] + ["", " NOT NULL"])
        null = self.dice.choice(["", "", "", " NOT NULL"])
        place = self.dice.choice(["", " FIRST", " AFTER k"])
        parts, names, after = self.dice.choices(
            [
                (f"MODIFY v {new}{null}{place}", ["v"], {**table.columns, "v": new}),
                (f"MODIFY k {key} NOT NULL", ["k"], {**table.columns, "k": key}),
                (f"ADD COLUMN x {other}{default}{place}", ["x"], {**table.columns, "x": other}),
                ("DROP COLUMN w", ["w"], {name: one for name, one in table.columns.items() if name != "w"}),
                (f"CHANGE v v2 {new}", ["v2", "v"], {"k": table.columns["k"], "v2": new, "w": table.columns["w"]}),
                (
                    f"MODIFY v {new}, ADD COLUMN x {other}{default}, DROP COLUMN w",
                    ["v", "x", "w"],
                    {"k": table.columns["k"], "v": new, "x": other},
                ),
                (
                    f"CHANGE v w {new}, CHANGE w v {table.columns['w']}",
                    ["v", "w"],
                    {**table.columns, "v": table.columns["w"], "w": new},
                ),
            ],
            [10, 4, 4, 1, 1, 1, 1],
        )[0]
        statement = f"ALTER TABLE {table.name} {parts}"
        if not self.tries(statement):
            return None
        table.columns = after
        return statement, names

    def pair(self) -> tuple[str, str]:
        """Two types, half of the time of families between which people convert."""
        if self.dice.random() < 0.5:
            return self.dice.choice(TYPES), self.dice.choice(TYPES)
        one, other = self.dice.choice(LIKELY)
        old, new = (self.dice.choice([t for t in TYPES if family(t) == kind]) for kind in (one, other))
        return old, new

    def change(self, table: Table) -> None:
        """Change rows after the ALTER: one goes, one comes, one gets another value."""
        self.tries(f"DELETE FROM {table.name} LIMIT 1")
        self.fill(Table(table.name, table.columns), 2)
        name = self.dice.choice(table.data)
        value = self.dice.choice(literals(table.columns[name], self.dice))
        self.tries(f"UPDATE {table.name} SET {name} = {value} LIMIT 1")


def stopped(made: Case) -> str:
    """Deliver up to the head; the error that stopped the load, "" if none did. Then its batch is passed."""
    try:
        made.run_until_head()
    except (LoadError, MappingError) as error:
        with made.runtime().state() as state:
            process = state.acks.get("copy")
        assert process is not None
        control.skip(made.runtime(), "copy", process.batch + 1, by="test", reason="", dry_run=False)
        return str(error)
    return ""


def differences(made: Case, tables: Iterable[str]) -> list[str]:
    """Return the differences that ``sluice verify`` finds while the pipeline goes on."""
    asked = VerifySpec(tables=[f"{made.schema}.{table}" for table in tables], values=True)
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(verify, made.runtime(), asked)
        while not waiting.done():
            made.run_until_head()
        result = waiting.result()
    return [f"{one.table}: {one.skipped or one.differences}" for one in result.tables if one.differing or one.skipped]


@pytest.mark.timeout(600 + 10 * COUNT)
@pytest.mark.parametrize("conversions", ["stop", "copy"])
@pytest.mark.parametrize("kind", ["mysql", *KINDS])
def test_rows_after_random_alters_are_the_sources(tmp_path: Path, request: Any, kind: str, conversions: str) -> None:
    if kind == "mysql" and conversions == "copy":
        pytest.skip("the target converts its rows itself")
    dice, told, wrong = random.Random(f"{SEED} {kind} {conversions}"), Counter[str](), list[str]()
    lines = ["ddl: {drop_table: ignore}", *(["on_conversion: copy"] if conversions == "copy" else [])]
    with (
        pipeline(tmp_path, kind, request, *lines, name=f"alters{conversions}") as (made, _),
        made.source.connect(made.schema) as connection,
        connection.cursor() as cursor,
    ):
        writer, here = Writer(made, cursor, dice), dict[str, str]()
        for number in range(COUNT // (1 if kind == "mysql" else 2)):
            old, new = writer.pair()
            writer.session("")
            table = writer.create(number, old)
            for _ in range(2):
                writer.fill(table, 6)
                early = stopped(made)
                if early:
                    break
            if early:
                told["not taken"] += 1
                cursor.execute(f"DROP TABLE {table.name}")
                continue
            writer.session(dice.choice(MODES))
            done = writer.alter(table, new)
            if done is None:
                told["refused"] += 1
                cursor.execute(f"DROP TABLE {table.name}")
                continue
            statement, names = done
            why = stopped(made)
            if not why:
                writer.session(dice.choice(["", "STRICT_TRANS_TABLES"]))
                writer.change(table)
                names, why = list(table.columns), stopped(made)  # a value that the target cannot hold
            if why:
                told["stopped"] += 1
                if table.name not in why or not any(name in why for name in names):
                    wrong.append(f"{statement} (was {old}): {why}")
                while stopped(made):  # a copy of it that was due meanwhile
                    pass
                cursor.execute(f"DROP TABLE {table.name}")
                continue
            told["followed"] += 1
            here[table.name] = f"{statement} (was {old})"
            if len(here) == A_ROUND:
                wrong += compared(made, here)
                cursor.execute(f"DROP TABLE {', '.join(here)}")
                here.clear()
        if here:
            wrong += compared(made, here)
    print(dict(told))
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
    assert told["followed"] >= FOLLOWED * (told.total() - told["refused"]), told


def compared(made: Case, here: dict[str, str]) -> list[str]:
    """Differences, each with the statement of its table."""
    made.run_until_head()
    made.run_until_head()  # what was copied again arrives
    return [f"{here.get(one.partition(':')[0].rpartition('.')[2], '')}: {one}" for one in differences(made, here)]
