"""What ``make test`` leaves to ``make test-all`` is named and exists, and each promise that is kept has a test in
``make test``.
"""

from __future__ import annotations

import pytest

from tests.support.suite import balance, tiers

FUNCTIONS = list(tiers.functions())
IDS = {function.nodeid for function in FUNCTIONS}


def test_every_rule_names_tests_that_exist_and_says_why() -> None:
    files = {balance.file_of(nodeid) for nodeid in IDS}
    for rule in tiers.rules():
        whole = rule.id.partition("[")[0]
        assert any(nodeid.startswith(rule.id) for nodeid in IDS) or whole in IDS | files, rule.id
        assert len(rule.reason) > 20, rule.id


def test_every_exception_of_a_rule_exists() -> None:
    """``kept`` belongs to all ids of an entry: each must exist for at least one of them, a case at least by its
    function.
    """
    entries: dict[str, list[tiers.Rule]] = {}
    for rule in tiers.rules():
        entries.setdefault(rule.reason, []).append(rule)
    for of_entry in entries.values():
        for kept in of_entry[0].kept:
            named = kept.partition("[")[0]
            found = [
                n for rule in of_entry for n in IDS if n == f"{rule.id}{named}" or n.startswith(f"{rule.id}{named}::")
            ]
            assert found, kept


def test_every_promise_that_is_kept_has_a_test_in_make_test(capsys: pytest.CaptureFixture[str]) -> None:
    promises = tiers.promises()
    in_test = {number for f in FUNCTIONS if not f.only_in_full for number in f.promises}
    in_any = {number for f in FUNCTIONS for number in f.promises}
    assert in_any <= promises.keys(), "a mark has a number that tests/promises.yaml lacks"
    kept = {number for number, promise in promises.items() if "open" not in promise}
    with capsys.disabled():
        if only_full := sorted((kept & in_any) - in_test):
            print(f"\npromises that only make test-all looks at: {', '.join(only_full)}")
    assert sorted(kept - in_test) == []


def test_a_promise_that_is_open_has_no_test() -> None:
    """Who builds it marks the test and takes ``open`` out."""
    marked = {number for f in FUNCTIONS for number in f.promises}
    assert sorted(n for n, promise in tiers.promises().items() if "open" in promise and n in marked) == []


def test_a_case_of_the_other_dialect_goes_only_where_mysql_has_the_same() -> None:
    assert tiers.only_in_full(
        "tests/integration/load/a.py::test_b[mariadb-x]", frozenset({"tests/integration/load/a.py::test_b[mysql-x]"})
    )
    assert not tiers.only_in_full("tests/integration/load/a.py::test_b[mariadb-x]", frozenset())
    assert not tiers.only_in_full("tests/integration/load/a.py::test_b[mysql-x]", frozenset())


@pytest.mark.parametrize(
    ("prefix", "nodeid", "expected"),
    [
        ("tests/a/", "tests/a/test_b.py::test_c", True),
        ("tests/a/test_b.py", "tests/a/test_b.py::test_c", True),
        ("tests/a/test_b.py", "tests/a/test_b.pyx::test_c", False),
        ("tests/a/test_b.py::test_c", "tests/a/test_b.py::test_c[1]", True),
        ("tests/a/test_b.py::test_c", "tests/a/test_b.py::test_cd", False),
    ],
)
def test_an_id_means_what_begins_with_it(prefix: str, nodeid: str, expected: bool) -> None:
    assert tiers.Rule(prefix, "").takes(nodeid) is expected


def test_the_longest_unit_comes_first_and_a_units_tests_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {
        "tests/integration/kafka/test_a.py": 3.0,
        "tests/integration/kafka/test_b.py": 4.0,
        "tests/unit/test_c.py": 5.0,
    }
    monkeypatch.setattr(balance, "measured", lambda: seconds)
    ids = [f"{file}::test_{n}" for n in (1, 2) for file in seconds]
    got = [ids[place] for place in balance.in_order(ids)]
    assert [balance.file_of(nodeid)[-4] for nodeid in got] == ["b", "b", "a", "a", "c", "c"]
    assert [nodeid[-1] for nodeid in got] == ["1", "2"] * 3
