"""The condition of a dump: what it may be, and that what is sent is one form of what was understood."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigError
from sluice.model.tables import TableId
from sluice.mysql.condition import literal, rendered
from tests.support.tables.conditions import ATTACKS

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
