"""What ``make test`` leaves to ``make test-all`` is named and exists, and each promise that is kept has a test in
``make test``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.suite import balance, tiers


@pytest.fixture(scope="module")
def functions() -> list[tiers.Function]:
    """Every test function; not read where the tests are only collected."""
    return list(tiers.functions())


@pytest.fixture(scope="module")
def ids(functions: list[tiers.Function]) -> set[str]:
    """The id of each, without parameters."""
    return {function.nodeid for function in functions}


def test_every_rule_names_tests_that_exist_and_says_why(ids: set[str]) -> None:
    files = {balance.file_of(nodeid) for nodeid in ids}
    for rule in tiers.rules():
        whole = rule.id.partition("[")[0]
        assert any(nodeid.startswith(rule.id) for nodeid in ids) or whole in ids | files, rule.id
        assert len(rule.reason) > 20, rule.id


def test_every_exception_of_a_rule_exists(ids: set[str]) -> None:
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
                n for rule in of_entry for n in ids if n == f"{rule.id}{named}" or n.startswith(f"{rule.id}{named}::")
            ]
            assert found, kept


def test_every_promise_that_is_kept_has_a_test_in_make_test(
    functions: list[tiers.Function], capsys: pytest.CaptureFixture[str]
) -> None:
    promises = tiers.promises()
    in_test = {number for f in functions if not f.only_in_full for number in f.promises}
    in_any = {number for f in functions for number in f.promises}
    assert in_any <= promises.keys(), "a mark has a number that tests/promises.yaml lacks"
    kept = {number for number, promise in promises.items() if "open" not in promise}
    with capsys.disabled():
        if only_full := sorted((kept & in_any) - in_test):
            print(f"\npromises that only make test-all looks at: {', '.join(only_full)}")
    assert sorted(kept - in_test) == []


def test_a_promise_that_is_open_has_no_test(functions: list[tiers.Function]) -> None:
    """Who builds it marks the test and takes ``open`` out."""
    marked = {number for f in functions for number in f.promises}
    assert sorted(n for n, promise in tiers.promises().items() if "open" in promise and n in marked) == []


def test_a_case_of_the_other_dialect_goes_only_where_mysql_has_the_same() -> None:
    assert tiers.only_in_full(
        "tests/integration/load/a.py::test_b[mariadb-x]", frozenset({"tests/integration/load/a.py::test_b[mysql-x]"})
    )
    assert not tiers.only_in_full("tests/integration/load/a.py::test_b[mariadb-x]", frozenset())
    assert not tiers.only_in_full("tests/integration/load/a.py::test_b[mysql-x]", frozenset())


def test_a_file_is_left_out_only_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = (
        tiers.Rule("tests/ui/test_a.py", ""),
        tiers.Rule("tests/load/", "", kept=("test_c.py::test_one",)),
        tiers.Rule("tests/dump/test_d.py", "", having="mariadb"),
        tiers.Rule("tests/dump/test_e.py::test_one", ""),
        tiers.Rule("tests/dump/test_f.py", "", kept=("::test_one",)),
        tiers.Rule("tests/dump/test_g.py", "", mark="slow"),
    )
    monkeypatch.setattr(tiers, "rules", lambda: rules)
    tiers._rules_about.cache_clear()
    try:
        files = ["ui/test_a", "load/test_b", "load/test_c", *(f"dump/test_{name}" for name in "defg")]
        left_out = [file for file in files if tiers.file_only_in_full(f"tests/{file}.py")]
    finally:
        tiers._rules_about.cache_clear()
    assert left_out == ["ui/test_a", "load/test_b"]


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


def test_the_order_is_the_same_from_whichever_end_the_files_were_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has its own way through the files, and all must agree on the order of the tests."""
    files = [f"tests/unit/test_{n}.py" for n in range(40)] + [f"tests/dags/test_{n}.py" for n in range(40)]
    monkeypatch.setattr(balance, "measured", lambda: {file: 0.1 * n for n, file in enumerate(files)})
    ids = [f"{file}::test_{n}" for file in files for n in range(3)]
    turned = [f"{file}::test_{n}" for file in reversed(files) for n in range(3)]
    assert [ids[place] for place in balance.in_order(ids)] == [turned[place] for place in balance.in_order(turned)]


def test_every_other_worker_begins_at_the_other_end(tmp_path: Path) -> None:
    for name in ("a/test_1.py", "b/test_2.py", "c/other.py", "test_3.py", "__pycache__/test_1.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    whole = [str(tmp_path)]
    assert balance.arguments_of("gw0", whole) == whole
    assert balance.arguments_of("gw1", whole) == [str(tmp_path / name) for name in ("test_3.py", "b", "a")]
    assert balance.arguments_of("gw1", [f"{tmp_path}/test_3.py"]) == [f"{tmp_path}/test_3.py"]
