"""Numbers of documents in which an object has a key twice: the server keeps the last value, so nothing is put in place
of an earlier one.
"""

from __future__ import annotations

import pytest

from sluice.targets.mysql.documents import literal


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ('{"a": 1.50, "b": 2.50}', [("a", "1.50"), ("b", "2.50")]),
        ('{"a": 1.50, "a": 2.50}', [("a", "2.50")]),
        ('{"a": [1.50, null], "a": "x"}', []),
        (r'{"a": 1.50, "\u0061": 1}', []),
        ('{"a": {"a": 1.50}, "b": {"a": 2.50}}', [('a"."a', "1.50"), ('b"."a', "2.50")]),
    ],
)
def test_the_last_value_of_a_key_is_the_one(text: str, replaced: list[tuple[str, str]]) -> None:
    made = literal(text)
    assert made.count("'$") == len(replaced)
    assert all(f"'$.\"{path}\"', {number}" in made for path, number in replaced)
