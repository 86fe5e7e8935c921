"""Each promise that is kept has a mutant or a reason why not, each mutant fits the code of today, and the page has the
results; and the engine tells killed, survived and invalid mutants apart.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.suite import mutants, tiers

MUTANTS, WITHOUT = mutants.read()


def test_every_promise_that_is_kept_has_a_mutant_or_a_reason() -> None:
    kept = {number for number, promise in tiers.promises().items() if "open" not in promise}
    tried = {mutant.promise for mutant in MUTANTS}
    assert sorted(kept - tried - WITHOUT.keys()) == []
    assert sorted((tried & WITHOUT.keys()) | ((tried | WITHOUT.keys()) - kept)) == []
    assert [number for number, reason in WITHOUT.items() if len(reason) < 20] == []


def test_every_mutant_fits_the_code() -> None:
    """Its text stands exactly once in its file, and the mutated file compiles."""
    for mutant in MUTANTS:
        mutant.text(mutants.ROOT)
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)


def test_the_page_has_every_mutant_and_all_are_killed() -> None:
    text = mutants.PAGE.read_text(encoding="utf-8")
    results = mutants.results_of(text)
    assert mutants.page(MUTANTS, WITHOUT, results) == text, "run `make test-mutants`"
    assert [id_ for id_, result in results.items() if not result.startswith("killed by ")] == []


@pytest.fixture
def laboratory(tmp_path: Path) -> mutants.Laboratory:
    """A product of one line, with a test that notices when it is wrong and one that does not."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include/shop.py").write_text("def price(number):\n    return number * 3\n")
    (tmp_path / "test_shop.py").write_text(
        "from subprocess import check_output\n\nimport sys\n\nimport pytest\n\n\n"
        "@pytest.mark.parametrize('x', [1], ids=['{a: [b]}-c d'])\n"
        "def test_strong(x):\n"
        "    # a program that the test starts has the mutant, too\n"
        "    assert check_output([sys.executable, '-c', 'import shop; print(shop.price(2))']) == b'6\\n'\n\n\n"
        "def test_weak():\n    import shop\n\n    assert shop.price(0) == 0\n\n\n"
        "def test_broken():\n    raise ValueError\n"
    )
    return mutants.Laboratory(tmp_path)


def mutant(by: str = "number * 4", replace: str = "number * 3") -> mutants.Mutant:
    return mutants.Mutant("A1", "include/shop.py", replace, by, "The price is wrong.")


@pytest.mark.slow
def test_a_mutant_is_killed_by_the_test_that_fails_with_it(laboratory: mutants.Laboratory) -> None:
    before = (laboratory.root / "include/shop.py").stat().st_mtime_ns
    tests = [["test_shop.py::test_weak"], ["test_shop.py::test_strong"]]
    assert laboratory.killer(mutant(), tests) == "test_shop.py::test_strong[{a: [b]}-c d]"
    assert laboratory.killer(mutant(), tests[:1]) is None
    assert (laboratory.root / "include/shop.py").stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "tests", "why"),
    [
        (mutant(replace="number * 5"), ["test_strong"], "has the text 0 times"),
        (mutant(by="number *"), ["test_strong"], "does not compile"),
        (mutant(), ["test_broken"], "fails without the mutant, too"),
        (mutant(), ["test_that_is_not_there"], "no failed test"),
        (mutant(), [], "no test of `make test` has the mark of A1"),
    ],
)
def test_what_shows_nothing_is_invalid(
    laboratory: mutants.Laboratory, wrong: mutants.Mutant, tests: list[str], why: str
) -> None:
    with pytest.raises(mutants.InvalidMutant, match=why):
        laboratory.killer(wrong, [[f"test_shop.py::{name}" for name in tests]] if tests else [])


def test_a_result_belongs_to_one_text_of_its_mutant() -> None:
    first, other = mutant(), mutant(by="number * 5")
    text = mutants.page([first], {"A2": "it has no server here"}, {first.id: "killed by `a::b`"})
    assert mutants.results_of(text) == {first.id: "killed by `a::b`"}
    assert mutants.results_of(mutants.page([other], {}, mutants.results_of(text))) == {other.id: "not run"}
    assert "- A2: it has no server here" in text
