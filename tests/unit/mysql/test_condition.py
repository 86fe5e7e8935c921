"""The condition of a dump: what it may be, and that what is sent is one form of what was understood."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigError
from sluice.model.tables import TableId
from sluice.mysql.condition import literal, rendered

TABLE = TableId("s", "t")
COLUMNS = ["id", "v", "Näme", "day", "a`b", "select", "date"]


def sent(text: str) -> str:
    return rendered(text, TABLE, COLUMNS)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("id = 1", "(`id` = 1)"),
        ("ID=1 or v<=>null and not v like '%x'", "((`id` = 1) OR ((`v` <=> NULL) AND (NOT (`v` LIKE '%x'))))"),
        ("t.id + s.t.id * 2 ^ 3", "(`id` + (`id` * (2 ^ 3)))"),
        ("`a``b` in (1, 'it''s', \"q\")", "(`a``b` IN (1, 'it''s', 'q'))"),
        ("`select` is not null", "(`select` IS NOT NULL)"),
        ("v = 'a\\'b\\\\c'", f"(`v` = {literal(chr(97) + chr(39) + 'b' + chr(92) + 'c')})"),
        ("v = 'a' 'b'", "(`v` = 'ab')"),
        ("näme = 'é'", "(`Näme` = _utf8mb4 x'c3a9')"),
        ("v BETWEEN 1 AND 2 AND id > 3", "((`v` BETWEEN 1 AND 2) AND (`id` > 3))"),
        ("day > now() - interval 1 day", "(`day` > (NOW() - INTERVAL 1 DAY))"),
        ("day >= date '2020-01-01'", "(`day` >= DATE '2020-01-01')"),
        ("date = 1", "(`date` = 1)"),
        ("(id, v) > (1, 2)", "((`id`, `v`) > (1, 2))"),
        ("case when id = 1 then 2 else 3 end", "(CASE WHEN (`id` = 1) THEN 2 ELSE 3 END)"),
        ("cast(v as decimal(10, 2)) > 1.5e3", "(CAST(`v` AS DECIMAL(10,2)) > 1.5e3)"),
        ("v -> '$.a' = 1", "(JSON_EXTRACT(`v`, '$.a') = 1)"),
        ("v collate utf8mb4_bin = 'x'", "((`v` COLLATE utf8mb4_bin) = 'x')"),
        ("-id % 3 div 2", "((- `id`) % 3 DIV 2)"),
        ("id in (x'00ff', 0xAB, b'01')", "(`id` IN (x'00ff', 0xab, b'01'))"),
    ],
)
def test_one_form(text: str, becomes: str) -> None:
    assert sent(text) == becomes
    assert sent(becomes) == becomes


ATTACKS = [
    "", " ", "-- x", "1 -- x", "1 # x", "1 /* x */", "1 /*! OR 1 */", "1 /*!50000 OR 1 */", "1 /*M! OR 1 */", "1 /*+ x */", "1;", "1; DROP TABLE t",
    "v > /*!50000 '') UNION SELECT pay FROM private.salaries WHERE (1= */ 1", "1) OR (1", "1) UNION SELECT 1 FROM t WHERE (1", "(1", "1)", ")", "(",
    "id = (SELECT 1)", "id IN (SELECT 1)", "EXISTS (SELECT 1)", "id = ANY (SELECT 1)", "1 UNION SELECT 2", "id INTO OUTFILE 'x'", "(TABLE t)",
    "(WITH a AS (SELECT 1) SELECT 1)", "(VALUES ROW(1))", "@a", "@@version", "@a := 1", "id := 1", "?", ":x", "{d '2020-01-01'}", "SLEEP(1)",
    "sleep (1)", "BENCHMARK(1, 1)", "GET_LOCK('a', 1)", "LOAD_FILE('/etc/passwd')", "UUID()", "RAND()", "USER()", "DATABASE()", "VERSION()",
    "LAST_INSERT_ID()", "ROW_COUNT()", "s.f(id)", "`f`(id)", "s.`sleep`(1)", "my_udf(id)", "COUNT(*)", "SUM(id)", "id OVER ()", "VALUES(id)",
    "MATCH (v) AGAINST ('x')", "REPEAT('a', 99999999)", "RPAD('a', 999999999, 'b')", "EXTRACTVALUE(v, '//a')", "UPDATEXML(v, 'a', 'b')",
    "REGEXP_REPLACE(v, 'a', 'b')", "MASTER_POS_WAIT('a', 1)", "WAIT_FOR_EXECUTED_GTID_SET('a')", "nextval(s)", "CONVERT(v USING gbk)",
    "_gbk'a'", "_gbk x'bf27'", "_utf8mb4'a'", "N'a'", "'a", '"a', "`a", "'a\\", "1 || 2", "!id", "id !", "id = !1", "1a", "id.", ".id", "t..id",
    "u.id", "x.t.id", "a.b.c.d", "nothing", "id id", "id = = 1", "id LIKE 'a' ESCAPE id", "id IS 1", "id BETWEEN 1", "CASE END", "CAST(id AS x)",
    "CAST(id AS CHAR CHARACTER SET gbk)", "CAST(id AS CHAR(1)) )", "id COLLATE 'x'", "day + INTERVAL 1", "day + INTERVAL 1 EON", "INTERVAL 1 DAY",
    "id = 1 LIMIT 1", "id = 1 ORDER BY 1", "id = 1 FOR UPDATE", "id = 1 PROCEDURE ANALYSE()", "id FROM t",
    "\x00", "id = '\x00' OR \x00", "id\u00a0= 1",
    "v = '\ud800'", "\uff11", "id = \u2019x\u2019", "(" * 2000 + "1" + ")" * 2000, "NOT " * 2000 + "1",
    "-" * 3000 + "1", "- " * 3000 + "1", "x" * 20_000,
    "DATE_ADD(day, 1)", "TIMESTAMPDIFF(x, day, day)", "IF", "LEFT(", "IN (1)", "NULL.x", "id -> 1", "id ->> v", "id.v", "BINARY",
]  # fmt: skip


@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_whatever_is_more_or_less_than_a_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sent(text)
    str(caught.value).encode("utf-8", "backslashreplace")
    assert caught.value.hint or "too long" in caught.value.message


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(ConfigError, match="did you mean 'day'"):
        sent("dai = 1")
    with pytest.raises(ConfigError, match="did you mean 'COALESCE'"):
        sent("COALESC(id, 1)")


def test_what_is_sent_is_ascii_without_comments_and_backslashes() -> None:
    for text in ("v = '\\\\' or v = '\u00e9\\n/* x */ -- #'", "`Näme` = '\\0\\Z\\t'"):
        made = sent(text)
        assert "\\" not in made
        assert not any(ord(c) < 32 for c in made)
