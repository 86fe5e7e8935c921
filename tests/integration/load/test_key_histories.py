"""Random histories of keys that a server may hold equal: behind every batch the target has the source's rows, in the
source's spelling.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.pipelines.case import Case, case
from tests.support.pipelines.small_units import small_units
from tests.support.servers.fixtures import setting
from tests.support.values.random_values import SPELLINGS

EXAMPLES = int(os.environ.get("SLUICE_HISTORIES", "2"))
"""Of each setting; 60 take two minutes each."""

WORDS = ["a", "A", "á", "a ", "A  ", "ss", "ß", "SS", "", " ", "b", "B\t"]
COMMON = {
    "general": "word VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "latin": "word VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    "padded": "word VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "fixed": "word CHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "bytes": "word BINARY(4)",
    "varbytes": "word VARBINARY(20)",
}
OWN = {
    "mysql": {"newest": "word VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci"},
    "mariadb": {"newest": "word VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_ai_ci"},
}
COLLATIONS = {
    "mysql": ["utf8mb4_0900_ai_ci", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin", "latin1_german2_ci"],
    "mariadb": ["utf8mb4_general_ci", "utf8mb4_uca1400_ai_ci", "utf8mb4_nopad_bin"],
}
"""Of tables with a word as key and another one that is unique."""

INSERT, DELETE = "INSERT IGNORE INTO {t} VALUES (%s, %s, %s)", "DELETE FROM {t} WHERE word = %s"
RENAME = "UPDATE IGNORE {t} SET word = %s WHERE word = %s"

Write = tuple[str, tuple[Any, ...]]
words, numbers = st.sampled_from(WORDS), st.integers(1, 3)
writes: st.SearchStrategy[list[Write]] = st.one_of(
    st.builds(lambda w, n, m: [(INSERT, (n, w, m))], words, numbers, numbers),
    st.builds(lambda w, n, m: [("REPLACE INTO {t} VALUES (%s, %s, %s)", (n, w, m))], words, numbers, numbers),
    st.builds(lambda w, v: [(RENAME, (v, w))], words, words),
    st.builds(lambda w, v: [(RENAME, (v, w)), (RENAME, (w, v))], words, words),
    st.builds(lambda w, v, n: [(DELETE, (w,)), (INSERT, (n, v, n))], words, words, numbers),
    st.builds(lambda w, v, n: [(INSERT, (n, v, n)), (DELETE, (w,))], words, words, numbers),
    st.builds(lambda w, n: [("UPDATE {t} SET v = v + %s WHERE word = %s", (n, w))], words, numbers),
    st.builds(lambda n: [("UPDATE IGNORE {t} SET n = n + 1 WHERE n = %s", (n,))], numbers),
)
histories = st.lists(st.lists(writes, min_size=1, max_size=12), min_size=2, max_size=3)


@dataclass
class Words:
    """A pipeline of small units, the schema that it writes to, and its tables by key: the word alone, and a number with
    it.
    """

    made: Case
    into: str
    tables: dict[str, list[str]]

    def follow(self, tables: Sequence[str], batches: Sequence[Sequence[Sequence[Write]]]) -> None:
        """Each batch into each table of the source, which begins empty; behind it both sides are equal."""
        for number, batch in enumerate(batches):
            writes_ = [write for some in batch for write in some]
            with self.made.source.connect(self.made.schema) as connection, connection.cursor() as cursor:
                cursor.execute("SET sql_mode = ''")
                for table in tables:
                    for statement, values in writes_ if number else [("DELETE FROM {t}", ()), *writes_]:
                        cursor.execute(statement.format(t=table), values)
                connection.commit()
            self.made.run_until_head()
            for table in tables:
                rows = f"SELECT n, HEX(word), v FROM {{}}.{table} ORDER BY n, 2"
                here = self.made.source.execute(rows.format(self.made.schema))
                there = self.made.target.execute(rows.format(self.into))
                assert list(there) == list(here), f"{table} behind batch {number + 1}"

    def follow_at_random(self, examples: int) -> None:
        every = [table for tables in self.tables.values() for table in tables]

        @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
        @given(histories)
        def holds(batches: list[list[list[Write]]]) -> None:
            self.follow(every, batches)

        holds()

    def write_at_random(self, table: str, seed: int, changes: int) -> None:
        """Inserts, updates of both words to other spellings, deletes: whatever the collation allows."""
        dice = random.Random(f"{table}{seed}")
        latin = table.startswith("latin1")
        spellings = [t for t in SPELLINGS if not latin or t == t.encode("latin1", "ignore").decode("latin1")]
        done = 0
        with self.made.source.connect(self.made.schema) as connection, connection.cursor() as cursor:
            while done < changes:
                word, other, n = dice.choice(spellings), dice.choice(spellings), dice.randint(1, 99)
                statement, values = dice.choice([
                    (f"INSERT IGNORE INTO {table} VALUES (%s, %s, %s)", (word, other, n)),
                    (f"REPLACE INTO {table} VALUES (%s, %s, %s)", (word, other, n)),
                    (f"UPDATE IGNORE {table} SET word = %s WHERE word = %s", (word, other)),
                    (f"UPDATE IGNORE {table} SET other = %s, n = %s WHERE word = %s", (word, n, other)),
                    (f"DELETE FROM {table} WHERE word = %s", (word,)),
                ])
                done += cursor.execute(statement, values)
            connection.commit()


@contextmanager
def built(folder: Path, request: pytest.FixtureRequest, *, uniques: bool) -> Iterator[Words]:
    """``request.param``: kind of server, consistency of the target, row image.

    ``uniques``: with the tables of :data:`COLLATIONS` only.
    """
    kind, consistency, *image = request.param.split()
    names = ("mysql_source", "mysql_target") if kind == "mysql" else ("mariadb", "mariadb")
    source, target, zookeeper, fresh_schema = (
        request.getfixturevalue(name) for name in (*names, "zookeeper", "fresh_schema")
    )
    schema = fresh_schema(source) if source is target else fresh_schema(source, target)
    into = fresh_schema(target) if source is target else schema
    columns = {**COMMON, **OWN[kind]}
    tables = {"word": [f"{name}_1" for name in columns], "n, word": [f"{name}_2" for name in COMMON]}
    lines = {
        table: f"(n INT NOT NULL, {columns[table[:-2]]} NOT NULL, v INT, PRIMARY KEY ({key}))"
        for key, every in tables.items()
        for table in every
    }
    if uniques:
        form = "(word VARCHAR(20) NOT NULL, other VARCHAR(20), n INT, PRIMARY KEY (word), UNIQUE KEY (other)) COLLATE"
        tables, lines = {}, {collation: f"{form} {collation}" for collation in COLLATIONS[kind]}
    settings_ = {
        "target_extra": f"    consistency: {consistency}",
        "extra": f"mapping: [{{from: {schema}.*, to: {into}.*}}]",
    }
    with ExitStack() as stack:
        if image:
            stack.enter_context(setting(source, binlog_row_image=image[0]))
        made = stack.enter_context(case(folder, source, target, zookeeper, schema, **settings_))
        for server, place in ((source, schema), (target, into)):
            server.execute(*(f"CREATE TABLE {place}.{table} {what}" for table, what in lines.items()))
        made.run_until_head()
        yield Words(made, into, tables)


@pytest.fixture(params=["mysql row", "mysql table", "mysql batch", "mariadb row"])
def words_(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Words]:
    small_units(monkeypatch, 6, 3)
    with built(tmp_path, request, uniques=False) as made:
        yield made


@pytest.fixture(params=["mysql row", "mysql batch", "mysql row MINIMAL", "mariadb row"])
def uniques(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Words]:
    small_units(monkeypatch, 20, 5)
    with built(tmp_path, request, uniques=True) as made:
        yield made


def test_a_unique_column_with_as_many_spellings_as_the_key(uniques: Words) -> None:
    """The tables end byte for byte as the source's, however the batch is cut into units."""
    made = uniques.made
    tables = [row[0] for row in made.source.execute(f"SHOW TABLES FROM {made.schema}")]
    for seed in range(4):
        for table in tables:
            uniques.write_at_random(table, seed, 120)
        made.run_until_head()
        for table in tables:
            rows = f"SELECT HEX(word), HEX(other), n FROM {{}}.{table} ORDER BY 1"
            here = made.source.execute(rows.format(made.schema))
            assert made.target.execute(rows.format(uniques.into)) == here, f"{table}, seed {seed}"


def test_a_spelling_that_goes_and_comes_again(words_: Words) -> None:
    words_.follow(words_.tables["word"], [
        [[(INSERT, (1, "a", 1)), (INSERT, (1, "b", 2))]],
        [[(RENAME, ("A ", "a")), (RENAME, ("a", "A ")), (RENAME, ("A ", "a"))]],
        [[(RENAME, ("a", "A "))], [(DELETE, ("a",)), (INSERT, (2, "A  ", 3))]],
        [[(DELETE, ("A  ",))], [(INSERT, (3, "a", 4))], [(DELETE, ("b",))]],
        [[(RENAME, ("A", "a")), (INSERT, (3, "B", 4))]],
    ])  # fmt: skip


def test_random_histories(words_: Words) -> None:
    words_.follow_at_random(EXAMPLES)
