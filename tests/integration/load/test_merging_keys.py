"""Keys of the target by which two rows of the source would be one: refused before a row is written, on real servers."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from sluice.errors import MappingError
from sluice.operations.check import check
from sluice.operations.copy_plan import planned_copies
from sluice.targets import open_target
from sluice.targets.mysql.uniqueness import distinguishes, pads
from tests.support.pipelines.case import case

SOURCE = "(id INT PRIMARY KEY, v VARCHAR(20), w VARCHAR(20) COLLATE utf8mb4_bin, n DECIMAL(12,4))"


REFUSED = {
    "unique": (SOURCE, "(id INT PRIMARY KEY, v VARCHAR(20), w VARCHAR(20), n DECIMAL(12,4), UNIQUE ux (v))",
        "DROP INDEX `ux`"),
    "unique of two": (SOURCE,
        "(id INT PRIMARY KEY, v VARCHAR(20), w VARCHAR(20), n DECIMAL(12,4), UNIQUE `u``x` (v, w))",
        "DROP INDEX `u``x`"),
    "another primary key": (SOURCE,
        "(id INT UNIQUE NOT NULL, v VARCHAR(20) PRIMARY KEY, w VARCHAR(20), n DECIMAL(12,4))", "DROP PRIMARY KEY"),
    "no key at the source": ("(a INT, v INT)", "(a INT, v INT, UNIQUE (a))", "DROP INDEX `a`"),
    "a default that is always the same": (SOURCE,
        "(id INT PRIMARY KEY, v VARCHAR(20), w VARCHAR(20), n DECIMAL(12,4), own INT NOT NULL DEFAULT 1, UNIQUE ux (v, own))", "DROP INDEX `ux`"),
    "a shorter prefix": ("(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE (v(5)))",
        "(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE ux (v(4)))", "DROP INDEX `ux`"),
    "a prefix of a whole key": ("(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE (v))",
        "(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE ux (v(4)))", "`ux`"),
    "a primary key with a prefix": ("(v VARCHAR(20) PRIMARY KEY)", "(v VARCHAR(20), PRIMARY KEY (v(3)))",
        "DROP PRIMARY KEY"),
    "coarser primary key": ("(v VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY)",
        "(v VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY)", "MODIFY COLUMN `v`"),
    "coarser unique key": ("(id INT PRIMARY KEY, v VARCHAR(20) COLLATE utf8mb4_bin UNIQUE)",
                           "(id INT PRIMARY KEY, v VARCHAR(20) COLLATE utf8mb4_general_ci, UNIQUE ux (v))",
                           "MODIFY COLUMN `v`"),
    "bytes as text": ("(k VARBINARY(10) PRIMARY KEY)", "(k VARCHAR(10) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY)",
        "at the source by its bytes"),
    "padded bytes as text": ("(k BINARY(4) PRIMARY KEY)", "(k CHAR(4) COLLATE utf8mb4_0900_as_cs PRIMARY KEY)",
        "MODIFY COLUMN `k` binary(4)"),
    "text of charset binary": ("(k VARCHAR(10) CHARACTER SET binary PRIMARY KEY)",
        "(k VARCHAR(10) COLLATE latin1_swedish_ci PRIMARY KEY)", "by its bytes"),
    "a prefix of bytes as text": ("(id INT PRIMARY KEY, b BLOB, UNIQUE (b(8)))",
        "(id INT PRIMARY KEY, b TEXT, UNIQUE ux (b(8)))", "at the source by its bytes"),
    "unique bytes as text": ("(id INT PRIMARY KEY, k VARBINARY(9) UNIQUE)",
        "(id INT PRIMARY KEY, k VARCHAR(9), UNIQUE ux (k))", "at the source by its bytes"),
    "a part of a key of bytes": ("(a INT, k VARBINARY(9), PRIMARY KEY (a, k))",
        "(a INT, k VARCHAR(9), PRIMARY KEY (a, k))", "at the source by its bytes"),
    "characters as a prefix of bytes": ("(id INT PRIMARY KEY, v TEXT, UNIQUE (v(5)))",
        "(id INT PRIMARY KEY, v BLOB, UNIQUE ux (v(5)))", "DROP INDEX `ux`"),
    "fewer digits in the key": ("(n DECIMAL(12,4) PRIMARY KEY)", "(n DECIMAL(12,2) PRIMARY KEY)", "rounded"),
    "whole seconds in the key": ("(n DATETIME(6) PRIMARY KEY)", "(n DATETIME PRIMARY KEY)", "rounded"),
    "an expression": (SOURCE,
        "(id INT PRIMARY KEY, v VARCHAR(20), w VARCHAR(20), n DECIMAL(12,4), UNIQUE ux ((LOWER(v))))",
        "DROP INDEX `ux`"),
    "a generated column": ("(id INT PRIMARY KEY, v INT)", "(id INT PRIMARY KEY, v INT AS (id + 1))", "generated"),
}  # fmt: skip
TAKEN = {
    "the same": ("(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE (v))", "(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE other "
    "(v))"),
    "more columns": ("(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE (v))", "(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE "
    "(v, id))"),
    "with the primary key": (SOURCE, SOURCE.replace("n DECIMAL(12,4)", "n DECIMAL(12,4), UNIQUE (v, id)")),
    "a longer prefix": ("(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE (v(5)))", "(id INT PRIMARY KEY, v VARCHAR(20), "
    "UNIQUE (v(6)))"),
    "a key of its own": ("(a INT, v INT)", "(own BIGINT AUTO_INCREMENT PRIMARY KEY, a INT, v INT)"),
    "with a column of its own that is NULL": (SOURCE, SOURCE.replace("n DECIMAL(12,4)", "n DECIMAL(12,4), own INT, "
    "UNIQUE (v, own)")),
    "finer": ("(v VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY)", "(v VARCHAR(20) COLLATE utf8mb4_bin PRIMARY "
    "KEY)"),
    "an expression on both sides": ("(id INT PRIMARY KEY, v VARCHAR(20), UNIQUE ((LOWER(v))))", "(id INT PRIMARY KEY, "
    "v VARCHAR(20), UNIQUE ((LOWER(v))))"),
    "a generated column on both sides": ("(id INT PRIMARY KEY, v INT AS (id + 1) UNIQUE)", "(id INT PRIMARY KEY, v "
    "INT AS (id + 1) UNIQUE)"),
    "bytes as exact text": ("(k VARBINARY(10) PRIMARY KEY)", "(k VARCHAR(10) COLLATE utf8mb4_0900_bin PRIMARY KEY)"),
    "text as bytes": ("(k VARCHAR(10) PRIMARY KEY)", "(k VARBINARY(40) PRIMARY KEY)"),
    "characters as enough bytes": ("(id INT PRIMARY KEY, v TEXT, UNIQUE (v(5)))", "(id INT PRIMARY KEY, v BLOB, "
    "UNIQUE ux (v(20)))"),
    "more digits": ("(n DECIMAL(12,4) PRIMARY KEY)", "(n DECIMAL(14,6) PRIMARY KEY)"),
}  # fmt: skip


@pytest.fixture
def made(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) -> Any:
    schema = fresh_schema(mysql_source, mysql_target, options="CHARACTER SET utf8mb4")
    with case(
        tmp_path, mysql_source, mysql_target, zookeeper, schema, target_extra="    ddl: {indexes: ignore}"
    ) as found:
        yield found


def test_check_and_load_refuse_what_would_merge_rows_and_nothing_else(made) -> None:
    tables = {f"r{n}": (name, *those) for n, (name, those) in enumerate(REFUSED.items())}
    tables |= {f"t{n}": (name, *those, "") for n, (name, those) in enumerate(TAKEN.items())}
    made.source.execute(f"USE `{made.schema}`", *(f"CREATE TABLE {table} {one[1]}" for table, one in tables.items()))
    made.target.execute(f"USE `{made.schema}`", *(f"CREATE TABLE {table} {one[2]}" for table, one in tables.items()))
    runtime = made.runtime()
    said = check(runtime)
    target = open_target(runtime.pipeline.targets[0], runtime.resolver, runtime.name)
    plans = {copy.plan.source.table: copy.plan for copy in planned_copies(runtime)[0]}
    for table, (name, _, _, words) in tables.items():
        errors = [f for f in said.findings if f.severity == "error" and f".{table} ->" in f.value]
        if not words:
            assert not errors, name
            target.check([plans[table]])
            continue
        assert errors, name
        assert any(words in f.why + f.fix for f in errors), (name, errors)
        with pytest.raises(MappingError) as caught:
            target.check([plans[table]])
        assert words in str(caught.value), name


def test_a_load_refuses_before_it_writes_and_what_it_says_helps(made) -> None:
    """Also a key that the source dropped and the target kept."""
    for server in (made.source, made.target):
        server.execute(f"CREATE TABLE `{made.schema}`.t (id INT PRIMARY KEY, v VARCHAR(10), UNIQUE ux (v))")
    made.run_until_head()
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES (1, 'x'), (2, 'y')")
    made.run_until_head()
    made.assert_equal("t")
    made.source.execute(f"ALTER TABLE `{made.schema}`.t DROP INDEX ux", f"UPDATE `{made.schema}`.t SET v = 'x'")
    with pytest.raises(MappingError, match="has a unique key that") as caught:
        made.run_until_head()
    statement = f"ALTER TABLE `{made.schema}`.`t` DROP INDEX `ux`"
    assert statement in (caught.value.hint or "")
    assert made.target.execute(f"SELECT * FROM `{made.schema}`.t ORDER BY id") == [(1, "x"), (2, "y")]
    made.target.execute(statement)
    made.run_until_head()
    made.assert_equal("t")


def test_a_promise_in_the_mapping_is_taken(made) -> None:
    made.source.execute(f"CREATE TABLE `{made.schema}`.t (id INT PRIMARY KEY, v VARCHAR(10))")
    made.target.execute(f"CREATE TABLE `{made.schema}`.t (id INT PRIMARY KEY, v VARCHAR(10) UNIQUE)")
    made.path.write_text(
        made.yaml + f"\nmapping: [{{from: {made.schema}.t, to: {made.schema}.t, unique: [[v]]}}]\n", encoding="utf-8"
    )
    made.run_until_head()
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES (1, 'x'), (2, 'y')")
    made.run_until_head()
    made.assert_equal("t")
    assert not check(made.runtime()).failed


def test_a_space_at_the_end_that_the_target_does_not_see_is_refused(made) -> None:
    """MySQL's newer collations tell `a` from `a `, and utf8mb4_bin does not."""
    made.source.execute(f"CREATE TABLE `{made.schema}`.t (v VARCHAR(9) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY)")
    made.target.execute(f"CREATE TABLE `{made.schema}`.t (v VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY)")
    made.run_until_head()
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES ('a'), ('b')")
    made.run_until_head()
    made.assert_equal("t")
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES ('a ')")
    with pytest.raises(MappingError, match="ends with a space"):
        made.run_until_head()
    made.target.execute(f"ALTER TABLE `{made.schema}`.t MODIFY v VARCHAR(9) COLLATE utf8mb4_0900_bin NOT NULL")
    made.run_until_head()
    made.assert_equal("t")


SAMPLES = [
    "a", "A", "á", "Á", "ä", "ae", "æ", "a ", " a", "a\t", "", " ", "ß", "ss", "SS", "ı", "i", "İ", "I", "ñ", "n", "Ñ",
    "ø", "o", "Ö", "ö", "oe", "œ",
    "ﬁ", "fi", "K", "K", "Å", "Å", "あ", "ア", "ｱ", "か", "が", "ー", "漢", "字", "😀", "😁", "\u200b", "\u00ad", "e\u0301", "é",
    "1", "１", "²", "2",
    "ij", "ĳ", "Č", "č", "c", "ll", "lʼl", "ъ", "Ъ", "ё", "е", "\U0001f468\u200d\U0001f469", "\x00", "a\x00",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_a_collation_called_finer_tells_apart_what_the_other_does(kind, request, fresh_schema) -> None:
    """The server says which strings it holds for equal."""
    server = request.getfixturevalue(kind)
    schema = fresh_schema(server)
    server.execute(f"CREATE TABLE `{schema}`.s (i INT, v VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)")
    with server.connect(schema) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO s VALUES (%s, %s)", list(enumerate(SAMPLES)))
        cursor.execute(
            "SELECT CONCAT(IF(COLLATION_NAME LIKE 'utf8mb4%%', '', 'utf8mb4_'), COLLATION_NAME) FROM "
            "information_schema.COLLATIONS WHERE CHARACTER_SET_NAME = 'utf8mb4' OR COLLATION_NAME LIKE 'uca1400%%'"
        )
        names = sorted({name for (name,) in cursor.fetchall()})
        names = [n for n in names if n.count("_") < 5 and not any(x in n for x in ("_hu_", "_sl_", "_la_", "_eo_"))][
            :90
        ]
        equal = {}
        for name in names:
            cursor.execute(
                f"SELECT a.i, b.i FROM s a JOIN s b ON a.i < b.i AND a.v COLLATE {name} = b.v COLLATE {name}"
            )
            equal[name] = set(cursor.fetchall())
    said = 0
    for one, other in combinations(names, 2):
        for source, target in ((one, other), (other, one)):
            if distinguishes(target, source) and not pads(target, source, "varchar(20)"):
                said += 1
                merged = [(SAMPLES[a], SAMPLES[b]) for a, b in equal[target] - equal[source]]
                assert not merged, (source, target, merged[:3])
    assert said > len(names)


@pytest.mark.parametrize("way", ["alter", "promise"])
def test_a_key_that_is_only_compared_less_exactly_says_so_and_how_to_go_on(made, way: str) -> None:
    """It names the column and both collations; what it advises is run."""
    table = "(id INT PRIMARY KEY, v VARCHAR(20) COLLATE {} NOT NULL, UNIQUE ux (v))"
    for server, collation in ((made.source, "utf8mb4_bin"), (made.target, "utf8mb4_general_ci")):
        server.execute(f"CREATE TABLE `{made.schema}`.t {table.format(collation)}")
    made.run_until_head()
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES (1, 'x'), (2, 'y')")
    with pytest.raises(MappingError, match=r"differ in a unique key may be equal in ux \(v\)") as caught:
        made.run_until_head()
    said, hint = str(caught.value), caught.value.hint or ""
    assert "column 'v': it is compared by utf8mb4_general_ci, at the source by utf8mb4_bin" in said
    assert "does not have" not in said
    if way == "alter":
        made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES (3, 'X')")
        made.target.execute(hint[hint.index("ALTER TABLE") : hint.index("; or drop")])
    else:
        made.path.write_text(made.yaml + "\n" + hint[hint.index("mapping: [") :].split("]}]")[0] + "]}]\n")
    made.run_until_head()
    made.assert_equal("t")


BYTES = [
    ("VARCHAR(9) COLLATE utf8mb4_bin", "VARCHAR(9) COLLATE utf8mb4_0900_bin"),
    ("CHAR(9) COLLATE utf8mb4_0900_bin", "VARBINARY(9)"),
]


@pytest.mark.parametrize(("declared", "fixed"), BYTES, ids=["a collation that pads", "CHAR"])
def test_bytes_that_end_with_a_space_are_refused_where_the_target_does_not_see_it(
    made, declared: str, fixed: str
) -> None:
    made.source.execute(f"CREATE TABLE `{made.schema}`.t (k VARBINARY(9) PRIMARY KEY)")
    made.target.execute(f"CREATE TABLE `{made.schema}`.t (k {declared} PRIMARY KEY)")
    made.run_until_head()
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES ('a'), ('A')")
    made.run_until_head()
    assert len(made.target.execute(f"SELECT k FROM `{made.schema}`.t")) == 2
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES ('a ')")
    with pytest.raises(MappingError, match="ends with a space"):
        made.run_until_head()
    made.target.execute(f"ALTER TABLE `{made.schema}`.t MODIFY k {fixed} NOT NULL")
    made.run_until_head()
    assert len(made.target.execute(f"SELECT k FROM `{made.schema}`.t")) == 3
