"""Conditions for dumps: values and names that they are made of, and texts that must be refused."""

from __future__ import annotations

VALUES = [
    "0", "1", "2", "-1", "1.5", ".5", "2.", "1e1", "NULL", "TRUE", "FALSE", "'a'", "'A'", "\"a\"", "'it''s'",
    "'it\\'s'", "\"q\"\"q\"", "'q\"q'",
    "'\\\\'", "'100\\%'", "'100%'", "'_b'", "'a\\_b'", "'a' 'b'", "'日本語'", "'é'", "'line\\nfeed'", "'\\a\\x\\0'",
    "x'61'", "0x61", "b'1'", "''",
    "DATE '2020-01-01'", "TIMESTAMP'2020-01-01 00:00:00'", "'2020-01-01'",
]  # fmt: skip
NAMES = ["id", "ID", "v", "w", "`Näme`", "Näme", "d", "f", "`a``b`", "t.id", "t.`v`", "j", "j->'$.a'", "j->>'$.a.b'"]

ATTACKS = [
    "", " ", "-- x", "1 -- x", "1 # x", "1 /* x */", "1 /*! OR 1 */", "1 /*!50000 OR 1 */", "1 /*M! OR 1 */",
    "1 /*+ x */", "1;", "1; DROP TABLE t",
    "v > /*!50000 '') UNION SELECT pay FROM private.salaries WHERE (1= */ 1", "1) OR (1",
    "1) UNION SELECT 1 FROM t WHERE (1", "(1", "1)", ")", "(",
    "id = (SELECT 1)", "id IN (SELECT 1)", "EXISTS (SELECT 1)", "id = ANY (SELECT 1)", "1 UNION SELECT 2",
    "id INTO OUTFILE 'x'", "(TABLE t)",
    "(WITH a AS (SELECT 1) SELECT 1)", "(VALUES ROW(1))", "@a", "@@version", "@a := 1", "id := 1", "?", ":x",
    "{d '2020-01-01'}", "SLEEP(1)",
    "sleep (1)", "BENCHMARK(1, 1)", "GET_LOCK('a', 1)", "LOAD_FILE('/etc/passwd')", "UUID()", "RAND()", "USER()",
    "DATABASE()", "VERSION()",
    "LAST_INSERT_ID()", "ROW_COUNT()", "s.f(id)", "`f`(id)", "s.`sleep`(1)", "my_udf(id)", "COUNT(*)", "SUM(id)",
    "id OVER ()", "VALUES(id)",
    "MATCH (v) AGAINST ('x')", "REPEAT('a', 99999999)", "RPAD('a', 999999999, 'b')", "EXTRACTVALUE(v, '//a')",
    "UPDATEXML(v, 'a', 'b')",
    "REGEXP_REPLACE(v, 'a', 'b')", "MASTER_POS_WAIT('a', 1)", "WAIT_FOR_EXECUTED_GTID_SET('a')", "nextval(s)",
    "CONVERT(v USING gbk)",
    "_gbk'a'", "_gbk x'bf27'", "_utf8mb4'a'", "N'a'", "'a", '"a', "`a", "'a\\", "1 || 2", "!id", "id !", "id = !1",
    "1a", "id.", ".id", "t..id",
    "u.id", "x.t.id", "a.b.c.d", "nothing", "id id", "id = = 1", "id LIKE 'a' ESCAPE id", "id IS 1", "id BETWEEN 1",
    "CASE END", "CAST(id AS x)",
    "CAST(id AS CHAR CHARACTER SET gbk)", "CAST(id AS CHAR(1)) )", "id COLLATE 'x'", "day + INTERVAL 1",
    "day + INTERVAL 1 EON", "INTERVAL 1 DAY",
    "id = 1 LIMIT 1", "id = 1 ORDER BY 1", "id = 1 FOR UPDATE", "id = 1 PROCEDURE ANALYSE()", "id FROM t",
    "\x00", "id = '\x00' OR \x00", "id\u00a0= 1",
    "v = '\ud800'", "\uff11", "id = \u2019x\u2019", "(" * 2000 + "1" + ")" * 2000, "NOT " * 2000 + "1",
    "-" * 3000 + "1", "- " * 3000 + "1", "x" * 20_000,
    "DATE_ADD(day, 1)", "TIMESTAMPDIFF(x, day, day)", "IF", "LEFT(", "IN (1)", "NULL.x", "id -> 1", "id ->> v", "id.v",
    "BINARY",
]  # fmt: skip
