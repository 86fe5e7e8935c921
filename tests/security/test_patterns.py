"""A regular expression of a file as the attacker: it may not keep a process busy for years."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.config import patterns
from sluice.config.loading import load_pipeline
from sluice.config.masking import Masking
from sluice.config.pipeline import CaptureConfig, TableMapping
from sluice.errors import ConfigError
from sluice.mapping.tables import Mapping
from sluice.model.tables import TableId
from sluice.serve.access import Reader
from sluice.sources.table_filter import Selection
from tests.dags.conftest import PIPELINE

ENDLESS = [
    r"shop\.(a|aa)+b", r"shop\.(a+)+b", r"shop\.(a|a)*b", r"shop\.(\w*\d*)*b", r"(.*)*(.*)*(.*)*(.*)*x",
    r"shop\.((a+)+b|c+)",
]  # fmt: skip
"""Python's own engine needs about 2 to the power of 60 steps."""


@pytest.mark.parametrize("pattern", ENDLESS)
def test_every_key_with_a_pattern_answers(pattern: str) -> None:
    table = TableId("shop", "a" * 60)
    assert not Selection.compile(CaptureConfig(include=(pattern,))).wants(table)
    assert Selection.compile(CaptureConfig(include=(r"shop\..*",), exclude=(pattern,))).wants(table)
    assert not Masking((pattern,)).hides("shop", table.table, "c")
    assert not Reader("anna", {"shop": (pattern,)}).may_read("shop", table)
    assert Mapping((TableMapping(from_=pattern, to="copy.t"),)).matched(table) is None
    assert patterns.expand(f"({pattern})", str(table), r"copy.\1") is None


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (r"shop\.(?!tmp_).*", "lookahead"), (r"shop\.(?=a).*", "lookahead"), (r"shop\.a(?<!b)", "lookbehind"),
        (r"(a)\.\1", r"\\1"), (r"(?P<n>a)\.(?P=n)", "reference"), (r"(?>a)\.b", "atomic"), (r"a++\.b", "possessive"),
        (r"(?x)a\.b", "flag"), (r"shop\.a\b.*", r"\\b"), (r"shop\.a\Z", r"\\Z"), (r"shop\.[\Wa]+", "in a set"),
        (r"(a)?(?(1)b|c)\.d", "condition"), (r"shop\.a(?#all)", "comment"),
    ],
)  # fmt: skip
def test_what_re2_lacks_is_refused_when_the_file_is_read(tmp_path: Path, pattern: str, what: str) -> None:
    path = tmp_path / "shop.yaml"
    text = PIPELINE.format(name="shop", schedule="continuous", mode="connect")
    path.write_text(re.sub(r"exclude: \[\".*?\"\]", lambda _: f"exclude: ['{pattern}']", text, count=1))
    with pytest.raises(ConfigError, match=what) as caught:
        load_pipeline(path)
    assert "capture.exclude" in str(caught.value)


def test_what_only_re2_refuses_is_an_error_with_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"matching 'shop\.a': .* is not a regular expression of RE2: .*repetition"):
        patterns.fullmatch(patterns.compiled(r"shop\.(a{1000}){1000}").pattern, "shop.a")


ATOMS = st.sampled_from([
    "a", "b", "ö", "_", "1", r"\.", r"\-", ".", r"\w", r"\d", r"\s", r"\W", r"\D", r"\S", "[a-c]", "[^a]", r"[\w-]", "[]a]",
    "[^]a]", "[[a]", r"[\]a]", r"[^\w.]", r"[\d_]", "(?i:A)", r"\ö", r"\x61", "[[:alpha:]]",
])  # fmt: skip
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{1,2}", "{2}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
        inner.map(lambda one: f"({one})"),
        inner.map(lambda one: f"(?P<n>{one})" if "?P<" not in one else one),
    ),
    max_leaves=6,
).filter(lambda expression: expression.count("?P<") < 2)


@given(EXPRESSIONS, st.text("abAö_1.-[]:٣ \u00a0", max_size=6))
def test_an_expression_matches_and_expands_as_in_python(expression: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # [[: of Python
        match = re.fullmatch(expression, name)
        assert patterns.fullmatch(patterns.compiled(expression).pattern, name) == (match is not None)
        groups = re.compile(expression).groups
        template = "x" + "".join(f"\\{number}" for number in range(1, groups + 1)) + r"\g<0>\\"
        assert patterns.expand(expression, name, template) == (match and match.expand(template))
