"""Check that conditions are split as every other SQL text is: by the lexer of the grammar, and as they always were.

Conditions are stored in pipelines and in dumps that are begun, so what was accepted must be accepted, and be sent in
the same form.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.errors import ConfigError
from sluice.model.tables import TableId
from sluice.mysql import condition
from tests.support.tables.conditions import ATTACKS, NAMES, VALUES

TABLE = TableId("s", "t")
COLUMNS = ["id", "v", "Näme", "day", "a`b", "select", "date"]
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<comment>/\*|\*/|\#|--)
    |(?P<introduced>_utf8mb4\s+[xX]'(?:[0-9A-Fa-f]{2})*')
    |(?P<hex>[xX]'(?:[0-9A-Fa-f]{2})*'|0x[0-9A-Fa-f]+)
    |(?P<bits>[bB]'[01]*'|0b[01]+)
    |(?P<text>'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*")
    |(?P<name>`(?:[^`]|``)+`)
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<word>[A-Za-z_$\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*)
    |(?P<sign><=>|<=|>=|<>|!=|<<|>>|&&|->>|->|[=<>+\-*/%(),.&|^~])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
"""The tokens of conditions until 0.2.0, when conditions had a tokenizer of their own."""
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class _Earlier(condition._Parser):
    """Reads with the earlier tokenizer."""

    def _read(self) -> list[condition._Token]:
        found: list[condition._Token] = []
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None or match.lastgroup == "comment":
                self._refuse(at, "no token")
            if match.lastgroup == "number" and re.match(r"[A-Za-z_$\u0080-\uffff]", self._text[match.end() :]):
                self._refuse(at, "letters after a number")
            if match.lastgroup != "space":
                found.append(condition._Token(str(match.lastgroup), match[0], at, self._value_of(match)))
            at = match.end()
        return [*found, condition._Token("end", "", len(self._text))]

    def _value_of(self, match: re.Match[str]) -> str:
        text, quote = match[0], match[0][0]
        if match.lastgroup == "name":
            return text[1:-1].replace("``", "`")
        if match.lastgroup == "introduced":
            return self._decoded(text.partition("'")[2].rstrip("'"), match.start())
        if match.lastgroup == "text":
            value = re.sub(
                rf"\\(.)|{quote}{quote}",
                lambda m: _ESCAPES.get(m[1], m[1]) if m[1] else quote,
                text[1:-1],
                flags=re.DOTALL,
            )
            if re.search("[\ud800-\udfff]", value):
                self._refuse(match.start(), "a text contains half a character")
            return value
        return text


def earlier(text: str) -> str | None:
    try:
        return _Earlier(text, TABLE, COLUMNS).whole()
    except ConfigError:
        return None


def sent(text: str) -> str:
    return condition.rendered(text, TABLE, COLUMNS)


def now(text: str) -> str | None:
    try:
        return sent(text)
    except ConfigError:
        return None


ACCEPTED = [
    "id = 1", "ID=1 or v<=>null and not v like '%x'", "t.id + s.t.id * 2 ^ 3", "`a``b` in (1, 'it''s', \"q\")",
    "v = 'a' 'b'",
    "v = _utf8mb4 x'c3a9' 'b'", "id=x'41'and 1", "v='a'or'b'=v", "id in(.5,2.,1e1,1.5e-3)", "id-1>-1", "id - -1",
    "v->'$.a'=1", "v->>'$.a'<>1",
    "t . id", "t.`select`=1", "day > now() - interval 1 day", "v = 'a\\'\\%\\_\\Z\\0\\q'", "näme&1|2^3<<4>>5%6",
    "id&&1", "id!=~1", "id\n=\t1\r",
]  # fmt: skip
PIECES = [
    *VALUES, *NAMES, *ACCEPTED, *(one for one in ATTACKS if len(one) < 40), "(", ")", ",", ".", "=", "<", ">", "!",
    "|", "&", "-", "--", "-- ", "->", "+",
    "*", "/", "/*", "*/", "#", "\\", "\\N", "'", '"', "`", "``", "1", "1a", "1.", ".1", "1e", "1e5", "0x", "0X41",
    "x'4'", "x'41'", "0b2", "b'1'", "_utf8mb4",
    "_utf8mb4 x'41'", "_utf8mb4 x'ff'", "_utf8mb4 0x41", "AND", "or", "not", "t", "id", "v", "NULL", "😀", "é", "\ud800",
    "\x00", "@", ":=", ";", "?",
]  # fmt: skip
_RUNS_INTO_LETTERS = re.compile(r"0x[0-9A-Fa-f]+[A-Za-z_$\u0080-\uffff]|0b[01]+[A-Za-z0-9_$\u0080-\uffff]")
"""The server reads a name there (``0x41or 1``), so what was accepted was not what it means."""


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_was_accepted_is_sent_in_the_same_form(text: str) -> None:
    assert now(text) is not None
    assert now(text) == earlier(text)


@given(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(["", "", " ", "\n"])), max_size=9))
@example([("0x41", ""), ("or", " "), ("1", "")])
@example([("t.", ""), ("1", "")])
@example([("id", "-"), ("-1", "")])
def test_both_tokenizers_agree(pieces: list[tuple[str, str]]) -> None:
    text = "".join(piece + space for piece, space in pieces)
    before = earlier(text)
    if before is not None and _RUNS_INTO_LETTERS.search(text):
        assert now(text) in {None, before}
    else:
        assert now(text) == before


@pytest.mark.parametrize(
    ("text", "why", "at"),
    [
        ("id = 1 -- x", "comments are not allowed", 8),
        ("id--1", "comments are not allowed; separate two minus signs by a space", 3),
        ("id /* x */ = 1", "comments are not allowed", 4),
        ("id /* x", "comments are not allowed", 4),
        ("id */ 1", "comments are not allowed", 4),
        ("1 # x", "comments are not allowed", 3),
        ("1 /*!50000 OR 1 */", "comments are not allowed", 3),
        ("id = 1a", "a number ends here in letters", 6),
        ("id = 1.5a", "a number ends here in letters", 6),
        ("id = 0x1g", "a number ends here in letters", 6),
        ("id = 'a", "a text does not end", 6),
        ('id = "a', "a text does not end", 6),
        ("id = `a", "a name does not end", 6),
        ("id = @a", "variables are not allowed", 6),
        ("id = @'a", "variables are not allowed", 6),
        ("id || v", "write OR, or CONCAT(a, b)", 4),
        ("!id", "write NOT", 1),
        ("id = 1;", "it has to be one condition", 7),
        ("id := 1", "':' has no meaning", 4),
        ("id = \\N", "has no meaning", 6),
        ("id =\x0b1", "has no meaning", 5),
        ("id = é😀", "'😀' has no meaning", 7),
        ("v = x'123'", "two digits for each byte", 5),
        ("v = _utf8mb4 x'ff'", "this is not UTF-8", 5),
        ("v = '\ud800'", "half a character", 5),
    ],
)  # fmt: skip
def test_a_refusal_says_what_and_where(text: str, why: str, at: int) -> None:
    with pytest.raises(ConfigError) as caught:
        sent(text)
    assert why in caught.value.message
    assert f"at character {at} " in caught.value.message
