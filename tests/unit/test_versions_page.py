"""docs/versions.md says what tests/matrix-results.json has, and the cells of the matrix name tests that exist."""

from __future__ import annotations

from tests.support.suite import matrix


def test_the_page_has_what_the_last_runs_found() -> None:
    text = matrix.PAGE.read_text(encoding="utf-8")
    assert matrix.renewed(text) == text, "run `make test-matrix CELLS=…` again, or write the table anew"


def test_cells_name_tests_that_exist() -> None:
    cells, _ = matrix.read_cells()
    named = [one for cell in cells.values() for one in cell.tests if one.startswith("tests/")]
    assert [one for one in named if not (matrix.ROOT / one).exists()] == []


def test_packages_of_a_cell_take_the_place_of_pinned_ones() -> None:
    asked = ["apache-airflow==3.3.2", "apache-airflow-providers-standard", "psycopg[binary]"]
    found = matrix.unpinned(asked, ["apache-airflow>=3.2,<3.3"])
    assert found == ["apache-airflow-providers-standard", "psycopg[binary]", "apache-airflow>=3.2,<3.3"]
