"""Data definition statements: written ones in every form, and random ones over whatever tables there are."""

from __future__ import annotations

import random
from collections.abc import Callable

_CONVERTED = "(a VARCHAR(9), b TEXT CHARACTER SET latin2, c ENUM('x')) CHARACTER SET cp1251"
WRITTEN = (
    "CREATE TABLE a (id INT PRIMARY KEY)",
    "create table if not exists a (other int)",
    "ALTER TABLE a ADD COLUMN b VARCHAR(10) CHARACTER SET latin1 NOT NULL DEFAULT 'x''y' COMMENT 'it''s; -- no' AFTER "
    "id, ADD c TEXT FIRST",
    "ALTER TABLE a ADD (d DECIMAL(5,2) UNSIGNED, e ENUM('x','y''z','u') DEFAULT 'x', f SET('p','q') CHARACTER SET "
    "latin2)",
    "alter table `a` change b `b b` varchar(20), modify d decimal(8,3) unsigned zerofill first",
    "ALTER TABLE a RENAME COLUMN `b b` TO b, RENAME COLUMN c TO `select`",
    "ALTER TABLE a CHANGE b `select` INT, CHANGE `select` b TEXT",
    "ALTER TABLE a DROP COLUMN `select`, DROP b",
    "ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (id, d)",
    "ALTER TABLE a ADD UNIQUE (e), ADD UNIQUE KEY u2 (f, e), ADD INDEX (d), ADD UNIQUE (e, d)",
    "ALTER TABLE a RENAME INDEX u2 TO u3",
    "ALTER TABLE a DROP COLUMN f",
    "ALTER TABLE a DROP INDEX u3, DROP KEY e_2",
    "ALTER TABLE a CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "ALTER TABLE a DEFAULT CHARACTER SET latin1, ADD COLUMN l TINYTEXT, ADD COLUMN l2 TEXT, ADD m MEDIUMTEXT, ADD "
    "COLUMN v VARCHAR(100)",
    "ALTER TABLE a CONVERT TO CHARACTER SET utf8mb4",
    "ALTER TABLE a CONVERT TO CHARACTER SET latin1",
    "ALTER TABLE a COLLATE utf8mb4_general_ci",
    "ALTER TABLE a ADD x1 CHAR(3) BINARY, ADD x2 VARCHAR(3) COLLATE latin1_bin, ADD x3 VARCHAR(9) CHARACTER SET "
    "utf8mb3",
    "ALTER TABLE a COMMENT 'hello', ENGINE = InnoDB ROW_FORMAT=DYNAMIC, ALGORITHM=COPY",
    "ALTER TABLE a ALTER COLUMN d SET DEFAULT 1.5, ALTER v SET DEFAULT 'q'",
    "ALTER TABLE a ALTER d DROP DEFAULT, ORDER BY id, d",
    "ALTER TABLE a FORCE",
    "CREATE TABLE b LIKE a",
    "CREATE TABLE c (LIKE b)",
    "RENAME TABLE a TO z, b TO a, z TO b",
    "ALTER TABLE b RENAME TO bb",
    "ALTER TABLE bb RENAME AS b, ADD COLUMN late INT",
    "TRUNCATE TABLE a",
    "TRUNCATE c",
    "DROP TABLE IF EXISTS c, nothing_there",
    """CREATE TABLE types (
        t1 TINYINT, t2 TINYINT(1), t3 BOOL, t4 TINYINT(3) UNSIGNED, t5 SMALLINT ZEROFILL, t6 MEDIUMINT, t7 INTEGER, t8 INT(5) ZEROFILL,
        t9 BIGINT UNSIGNED,
        n1 DECIMAL, n2 NUMERIC(4), n3 DEC(10,2) UNSIGNED, n4 FIXED(6,1), n5 FLOAT, n6 FLOAT(10), n7 FLOAT(30), n8 DOUBLE PRECISION, n9 REAL,
        n10 FLOAT(7,3), n11 DOUBLE(9,4) UNSIGNED, b1 BIT, b2 BIT(17), d1 DATE, d2 DATETIME, d3 DATETIME(6), d4 TIMESTAMP NULL, d5 TIMESTAMP(3) NULL,
        d6 TIME, d7 TIME(2), d8 YEAR, d9 YEAR(4), c1 CHAR, c2 CHAR(10), c3 VARCHAR(10), c4 CHARACTER VARYING(12), c5 NCHAR(4), c6 NVARCHAR(4),
        c7 NATIONAL VARCHAR(6), c8 LONG, c9 LONG VARBINARY, x1 TEXT(10), x2 TEXT(300), x3 TEXT(20000), x4 BLOB(300), x5 BLOB(70000), x6 TINYBLOB,
        x7 LONGTEXT, x8 BINARY, x9 BINARY(20), y1 VARBINARY(7), y2 CHAR(4) CHARACTER SET binary, y3 VARCHAR(5) CHARSET binary,
        y4 TEXT CHARACTER SET binary, y5 CHAR(3) ASCII, y6 CHAR(3) UNICODE, y7 CHAR(3) BYTE, j JSON, g GEOMETRY, p POINT, gc GEOMETRYCOLLECTION,
        e1 ENUM('a ','b\\\\c','', 'q"q'), e2 SET('é','x') CHARACTER SET latin1 COLLATE latin1_german1_ci, i1 INT1, i8 INT8, m1 MIDDLEINT)""",
    "CREATE TABLE serials (id SERIAL, n INT DEFAULT 5, KEY (n))",
    "CREATE TABLE gen (a INT, b INT AS (a + 1), c INT GENERATED ALWAYS AS (a * 2) STORED, "
    "d VARCHAR(9) GENERATED ALWAYS AS (concat('(', a)) VIRTUAL)",
    "ALTER TABLE gen ADD e INT AS (a - 1) STORED FIRST, MODIFY b BIGINT AS (a + 2)",
    "CREATE TABLE keyless (a INT, b INT NOT NULL, c INT NOT NULL, UNIQUE (a), UNIQUE bc (b, c), UNIQUE cc (c))",
    "ALTER TABLE keyless MODIFY a INT NOT NULL",
    "ALTER TABLE keyless DROP INDEX bc",
    "ALTER TABLE keyless ADD PRIMARY KEY (a)",
    "CREATE TABLE prefixed (v VARCHAR(50) NOT NULL, t TEXT NOT NULL, UNIQUE (v(10)), UNIQUE KEY (t(20)), FULLTEXT (t))",
    "CREATE UNIQUE INDEX full_v ON prefixed (v)",
    "DROP INDEX v ON prefixed",
    "CREATE INDEX plain ON prefixed (v DESC)",
    "CREATE TABLE cs (a VARCHAR(5), b TEXT) DEFAULT CHARSET=latin1 COLLATE=latin1_german1_ci COMMENT='c' "
    "AUTO_INCREMENT=5",
    "CREATE TABLE `odd ``name``` (`a b` INT, `ü€` VARCHAR(3), `select` INT, `1x` INT, `x.y` INT)",
    "ALTER TABLE `odd ``name``` DROP `x.y`, ADD `neu😀` INT",
    "/* lead */ ALTER /* in */ TABLE a -- tail\n ADD COLUMN commented INT # end",
    "/*!50003 ALTER TABLE a ADD COLUMN versioned INT */",
    "ALTER TABLE a ADD COLUMN v2 INT /*!99999 , ADD COLUMN v3 INT */",
    "CREATE TABLE parent (id INT PRIMARY KEY, k INT, UNIQUE (k))",
    """CREATE TABLE child (id INT PRIMARY KEY, p INT, q INT REFERENCES parent (id), CONSTRAINT fk FOREIGN KEY (p) REFERENCES parent (id)
        ON DELETE CASCADE ON UPDATE SET NULL, CONSTRAINT pos CHECK (id > 0), CHECK (id <> 3))""",
    "ALTER TABLE child DROP FOREIGN KEY fk, ADD CONSTRAINT other UNIQUE (p)",
    "ALTER TABLE child DROP CONSTRAINT other",
    "CREATE TABLE parts (id INT NOT NULL, y INT NOT NULL, PRIMARY KEY (id, y)) PARTITION BY RANGE (y) (PARTITION p0 "
    "VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)",
    "ALTER TABLE parts REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS "
    "THAN MAXVALUE)",
    "ALTER TABLE parts TRUNCATE PARTITION p0, p1",
    "ALTER TABLE parts DROP PARTITION p0",
    "CREATE TABLE swapped LIKE parts",
    "ALTER TABLE swapped REMOVE PARTITIONING",
    "ALTER TABLE parts EXCHANGE PARTITION p1 WITH TABLE swapped",
    "ALTER TABLE parts ADD COLUMN z INT PARTITION BY HASH (id) PARTITIONS 3",
    "ALTER TABLE parts COALESCE PARTITION 1",
    "CREATE TABLE copied AS SELECT 1 AS one, 'x' AS x, id FROM parent",
    "CREATE TABLE copied2 (id INT PRIMARY KEY, extra TEXT) SELECT id FROM parent",
    "CREATE TEMPORARY TABLE temporary_one (id INT)",
    "CREATE OR REPLACE VIEW seen AS SELECT * FROM parent",
    "DROP VIEW seen",
    "CREATE TABLE stamps (a TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, b DATETIME(3) "
    "DEFAULT CURRENT_TIMESTAMP(3), "
    "c TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00', d INT DEFAULT -5, e VARCHAR(9) DEFAULT 'a\\\\b', f BIT(4) "
    "DEFAULT b'101', g DOUBLE DEFAULT 1, "
    "h VARBINARY(4) DEFAULT 'ab', i DATE DEFAULT '2020-02-02', j VARCHAR(40) DEFAULT (concat('a', 'b')))",
    "SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')",
    'CREATE TABLE "ansi" ("id" INT, "two words" VARCHAR(5) DEFAULT \'x\')',
    "SET SESSION sql_mode = REPLACE(@@sql_mode, 'ANSI_QUOTES', 'NO_BACKSLASH_ESCAPES')",
    "CREATE TABLE plain (a VARCHAR(5) DEFAULT 'x\\', b VARCHAR(3) COMMENT 'y\\')",
    "SET SESSION sql_mode = REPLACE(@@sql_mode, 'NO_BACKSLASH_ESCAPES', '')",
    "SET NAMES latin1",
    "CREATE TABLE named_in_latin1 (a INT, `col` ENUM('x') )",
    "SET NAMES utf8mb4",
    "DROP TABLE types",
    f"CREATE TABLE conv1 {_CONVERTED}",
    "ALTER TABLE conv1 CONVERT TO CHARACTER SET latin1, COLLATE latin1_german1_ci",
    f"CREATE TABLE conv2 {_CONVERTED}",
    "ALTER TABLE conv2 DEFAULT CHARACTER SET utf8mb4, CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    f"CREATE TABLE conv3 {_CONVERTED}",
    "ALTER TABLE conv3 COLLATE utf8mb4_general_ci, CONVERT TO CHARACTER SET utf8mb4",
    f"CREATE TABLE conv4 {_CONVERTED}",
    "ALTER TABLE conv4 CONVERT TO CHARACTER SET utf8mb4, DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "CREATE TABLE prefix_gone (c VARCHAR(20) NOT NULL, UNIQUE (c(6)))",
    "ALTER TABLE prefix_gone CHANGE c d TINYINT",
    "CREATE TABLE prefix_cut (a INT, b TEXT) CHARACTER SET utf8mb4",
    "ALTER TABLE prefix_cut MODIFY b TINYTEXT, ADD KEY (b(100))",
    "CREATE TABLE again (a INT, b INT, c INT)",
    "ALTER TABLE again DROP a, CHANGE b a BIGINT",
    "ALTER TABLE again DROP a, ADD a INT",
    "ALTER TABLE again DROP a, RENAME COLUMN c TO a",
)  # fmt: skip

MYSQL = (
    "CREATE TABLE seen_b2 (a TEXT BINARY COLLATE latin1_german1_ci, "
    "b TEXT CHARACTER SET latin1 BINARY COLLATE latin1_german1_ci, "
    "c TEXT BINARY CHARACTER SET latin1 COLLATE latin1_german1_ci, d TEXT BINARY COLLATE utf8mb4_general_ci, x "
    "CHAR(5) BINARY COLLATE binary)",
    "CREATE TABLE seen_s1 (a INT CHECK (a > 1) NOT NULL, k MEDIUMTEXT, b BINARY(20) NOT NULL, "
    "c BINARY(1) NOT NULL, z INT CHECK (z > 1) NOT ENFORCED NOT NULL)",
    "ALTER TABLE seen_s1 ALTER COLUMN k SET DEFAULT (1 + 2)",
    "ALTER TABLE seen_s1 ADD x JSON DEFAULT (JSON_ARRAY()), ALTER COLUMN b SET DEFAULT ('x')",
    "ALTER TABLE seen_s1 ALTER COLUMN x SET DEFAULT (JSON_OBJECT())",
    "CREATE TABLE seen_e4 (a SET('a','b','c','d','e','f','g','h','i') CHARACTER SET latin1 NOT NULL, "
    "e ENUM('a') CHARACTER SET latin1, UNIQUE ka (a), KEY ke (e))",
    "CREATE TABLE seen_p (id INT PRIMARY KEY)",
    "CREATE TABLE seen_ch (a INT, CONSTRAINT c1 FOREIGN KEY idx_name (a) REFERENCES seen_p (id))",
    "CREATE TABLE seen_ch2 (a INT, FOREIGN KEY idx_name (a) REFERENCES seen_p (id))",
    "CREATE TABLE seen_ch3 (a INT, KEY kk (a))",
    "ALTER TABLE seen_ch3 ADD CONSTRAINT cc FOREIGN KEY ii (a) REFERENCES seen_p (id)",
    "ALTER TABLE a ADD COLUMN hidden INT INVISIBLE DEFAULT 3",
    "ALTER TABLE a ALTER COLUMN hidden SET VISIBLE",
    "ALTER TABLE a ADD COLUMN hidden2 INT INVISIBLE",
    "ALTER TABLE a ADD COLUMN vec VECTOR(3), ADD COLUMN vec2 VECTOR",
    "ALTER TABLE a ADD COLUMN expr VARCHAR(40) DEFAULT (CONCAT('a', 'b')), ADD UNIQUE ((id + 1)), ALGORITHM=COPY",
    "ALTER TABLE a ADD srid POINT SRID 4326",
    "ALTER TABLE a ALTER INDEX d INVISIBLE",
    "ALTER TABLE gen ADD s INT CHECK (s > 1) NOT ENFORCED",
    "SET SESSION explicit_defaults_for_timestamp = OFF",
    "CREATE TABLE implied (a TIMESTAMP, b TIMESTAMP NULL, c DATETIME)",
    "SET SESSION explicit_defaults_for_timestamp = ON",
    "CREATE TABLE explicit (a TIMESTAMP, b TIMESTAMP NULL)",
    "SET SESSION default_collation_for_utf8mb4 = 'utf8mb4_general_ci'",
    "CREATE TABLE collated (a VARCHAR(5)) CHARACTER SET utf8mb4",
    "SET SESSION default_collation_for_utf8mb4 = DEFAULT",
    "SET SESSION sql_generate_invisible_primary_key = ON",
    "CREATE TABLE gipk (a INT)",
    "SET SESSION sql_generate_invisible_primary_key = OFF",
    "CREATE TABLE unnamed_expression (c1 INT, UNIQUE ((c1 + 1)))",
    "ALTER TABLE unnamed_expression ADD UNIQUE ((c1 + 2)), ADD UNIQUE (c1)",
    "ALTER TABLE unnamed_expression DROP INDEX functional_index",
    "SET SESSION sql_mode = ''",
    "CREATE TABLE blob_default (b BLOB NOT NULL DEFAULT '')",
    "SET SESSION sql_mode = DEFAULT",
    "CREATE TABLE srv (a VARCHAR(5)) CHARACTER SET utf8mb4",
)

MARIADB = (
    "CREATE TABLE seen_s1 (a INT , b DATETIME ON UPDATE CURRENT_TIMESTAMP NOT NULL, "
    "c TIMESTAMP(3) ON UPDATE NOW(3) NOT NULL, d DATETIME NOT NULL, e TIMESTAMP NOT NULL DEFAULT '2020-01-01' ON "
    "UPDATE NOW())",
    "ALTER TABLE seen_s1 ADD z DATETIME ON UPDATE NOW() INVISIBLE NOT NULL, MODIFY b DATETIME NOT NULL",
    "CREATE TABLE seen_r1 (a INT)",
    "CREATE TABLE seen_r3 (a INT)",
    "CREATE TABLE seen_p3 (a GEOMETRY, b TEXT, KEY k (a), KEY x (b(3)))",
    "CREATE OR REPLACE INDEX x ON seen_p3 (a ASC)",
    "CREATE TABLE seen_p (id INT PRIMARY KEY)",
    "CREATE TABLE seen_ch (a INT, CONSTRAINT c1 FOREIGN KEY idx_name (a) REFERENCES seen_p (id))",
    "CREATE TABLE seen_ch2 (a INT, FOREIGN KEY idx_name (a) REFERENCES seen_p (id))",
    "CREATE OR REPLACE TABLE gen (a INT, u UUID, i4 INET4, i6 INET6, z VARCHAR(100) COMPRESSED, zb BLOB COMPRESSED)",
    "ALTER TABLE IF EXISTS a ADD COLUMN IF NOT EXISTS id INT, ADD COLUMN IF NOT EXISTS extra INT",
    "ALTER TABLE a DROP COLUMN IF EXISTS nothing, MODIFY COLUMN IF EXISTS nothing INT, CHANGE COLUMN IF EXISTS "
    "nothing x INT",
    "ALTER IGNORE TABLE a ADD INDEX IF NOT EXISTS d (d), DROP INDEX IF EXISTS nothing",
    "ALTER ONLINE TABLE a WAIT 5 ADD COLUMN onl INT",
    "ALTER TABLE a ADD COLUMN inv INT INVISIBLE DEFAULT 3",
    "ALTER TABLE a ADD COLUMN ex VARCHAR(40) DEFAULT uuid(), ADD n2 INT DEFAULT (1 + 2)",
    "/*M!100100 ALTER TABLE a ADD COLUMN maria INT */",
    "ALTER TABLE a ADD COLUMN p1 INT AS (id) PERSISTENT",
    "RENAME TABLE IF EXISTS gen TO gen2",
    "DROP TABLE IF EXISTS gen2 WAIT 3",
    "CREATE SEQUENCE seq",
    "CREATE TABLE srv (a VARCHAR(5)) CHARACTER SET utf8mb4 COLLATE uca1400_ai_ci",
    "CREATE TABLE serial_key (id SERIAL PRIMARY KEY, n INT)",
    "SET SESSION sql_mode = ''",
    "CREATE TABLE long_text (a VARCHAR(20000) CHARACTER SET utf8mb4)",
    "SET SESSION sql_mode = DEFAULT",
    f"CREATE TABLE conv5 {_CONVERTED}",
    "ALTER TABLE conv5 CONVERT TO CHARACTER SET utf8mb4, DEFAULT CHARACTER SET latin1",
    f"CREATE TABLE conv6 {_CONVERTED}",
    "ALTER TABLE conv6 DEFAULT CHARACTER SET latin1, CONVERT TO CHARACTER SET utf8mb4",
)


class Random:
    """Statements over tables that it thinks there are; the server refuses some."""

    def __init__(self, choose: random.Random, *, mariadb: bool) -> None:
        self.choose, self.mariadb = choose, mariadb
        self.tables: dict[str, list[str]] = {}
        self.names = 0

    def next(self) -> tuple[str, Callable[[], None]]:
        """A statement, and what to call once the server took it."""
        choose = self.choose
        if len(self.tables) < 2 or choose.random() < 0.08:
            return self._create()
        what = choose.random()
        table = choose.choice(sorted(self.tables))
        if what < 0.04:
            return f"DROP TABLE `{table}`", lambda: self._forget(table)
        if what < 0.1:
            new = self._name("t")
            return f"RENAME TABLE `{table}` TO `{new}`", lambda: self._move(table, new)
        if what < 0.16:
            other = choose.choice(sorted(self.tables))
            tmp = self._name("t")
            return (
                f"RENAME TABLE `{table}` TO `{tmp}`, `{other}` TO `{table}`, `{tmp}` TO `{other}`",
                lambda: self._swap(table, other),
            )
        if what < 0.2:
            new = self._name("t")
            return f"CREATE TABLE `{new}` LIKE `{table}`", lambda: self.tables.update({new: list(self.tables[table])})
        return self._alter(table)

    def _name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def _create(self) -> tuple[str, Callable[[], None]]:
        name = self._name("t")
        columns = [self._name("c") for _ in range(self.choose.randint(1, 6))]
        lines = ["id INT NOT NULL", *(f"`{c}` {self._type()}" for c in columns)]
        if self.choose.random() < 0.7:
            lines.append("PRIMARY KEY (id)")
        tail = self.choose.choice([
            "",
            " CHARACTER SET latin1",
            " COLLATE utf8mb4_bin",
            " DEFAULT CHARSET=utf8mb3",
            " CHARSET utf8mb4",
        ])
        return f"CREATE TABLE `{name}` ({', '.join(lines)}){tail}", lambda: self.tables.update({name: ["id", *columns]})

    def _type(self) -> str:
        choose = self.choose
        kind = choose.choice(
            ["INT", "INT UNSIGNED", "TINYINT(1)", "BIGINT ZEROFILL", "DECIMAL(9,3)", "FLOAT", "DOUBLE UNSIGNED",
                "BIT(9)", "DATE", "DATETIME(2)",
             "TIME(6)", "TIMESTAMP NULL", "YEAR", "VARCHAR(30)", "CHAR(7)", "TEXT", "TINYTEXT", "MEDIUMTEXT", "BLOB",
             "VARBINARY(20)", "BINARY(3)",
             "ENUM('a','b','c')", "SET('x','y','z')", "JSON", "TEXT(1000)", "VARCHAR(8) CHARACTER SET latin2",
             "CHAR(3) COLLATE latin1_bin",
             "SMALLINT NOT NULL DEFAULT 3", "VARCHAR(5) NOT NULL", "INT NOT NULL COMMENT 'a, b'",
             "ENUM('p') CHARACTER SET latin1", "POINT",
             "VARCHAR(11) BINARY", "TEXT CHARACTER SET utf8mb3", "MEDIUMINT UNSIGNED ZEROFILL"]
        )  # fmt: skip
        return str(kind)

    def _alter(self, table: str) -> tuple[str, Callable[[], None]]:
        columns = list(self.tables[table])
        clauses: list[str] = []
        for _ in range(self.choose.choice([1, 1, 2, 3, 5])):
            clause = self._clause(columns, self.tables[table])
            charset = ("CONVERT", "DEFAULT CHAR")
            if not (clause.startswith(charset) and any(other.startswith(charset) for other in clauses)):
                clauses.append(clause)
        return f"ALTER TABLE `{table}` {', '.join(clauses)}", lambda: self.tables.update({table: columns})

    def _clause(self, columns: list[str], original: list[str]) -> str:
        choose = self.choose
        what = choose.random()
        there = [
            c for c in columns if c in original
        ]  # servers differ in what a clause may say of a column that another clause adds
        column = choose.choice(there) if there else "id"
        place = choose.choice(["", "", " FIRST", f" AFTER `{choose.choice(columns) if columns else 'id'}`"])
        if what < 0.3:
            new = self._name("c")
            columns.append(new)
            return f"ADD COLUMN `{new}` {self._type()}{place}"
        if what < 0.42 and len(there) > 1:
            columns.remove(column)
            return f"DROP COLUMN `{column}`"
        if what < 0.54:
            return f"MODIFY `{column}` {self._type()}{place}"
        if what < 0.66 and there:
            new = self._name("c")
            columns[columns.index(column)] = new
            return f"CHANGE `{column}` `{new}` {self._type()}{place}"
        if what < 0.72 and there:
            new = self._name("c")
            columns[columns.index(column)] = new
            return f"RENAME COLUMN `{column}` TO `{new}`"
        if what < 0.78:
            return (
                "CONVERT TO CHARACTER SET "
                f"{choose.choice(['utf8mb4', 'latin1', 'utf8mb3', 'utf8mb4 COLLATE utf8mb4_bin', 'latin2'])}"
            )
        if what < 0.82:
            return f"DEFAULT CHARACTER SET {choose.choice(['utf8mb4', 'latin1', 'cp1251'])}"
        if what < 0.88:
            return f"ADD UNIQUE (`{column}`)"
        if what < 0.92:
            return f"ADD UNIQUE {self._name('k')} (`{column}`, id)"
        if what < 0.95:
            return choose.choice(["DROP PRIMARY KEY", "ADD PRIMARY KEY (id)"])
        return choose.choice([
            f"ALTER `{column}` DROP DEFAULT",
            "ENGINE=InnoDB",
            "COMMENT='x, y'",
            "FORCE",
            f"ADD INDEX (`{column}`)",
        ])

    def _forget(self, table: str) -> None:
        self.tables.pop(table, None)

    def _move(self, table: str, new: str) -> None:
        self.tables[new] = self.tables.pop(table)

    def _swap(self, one: str, other: str) -> None:
        self.tables[one], self.tables[other] = self.tables[other], self.tables[one]
