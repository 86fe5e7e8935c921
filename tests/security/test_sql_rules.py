"""A rule of type sql, and the condition of a filter, as the attacker: neither reaches out of its query."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import RuleError
from sluice.rules import sql
from tests.support.tables.rule_tables import TABLE, engine, result, row, rows

_CLOSED = "file system operations are disabled|does not exist|No function matches"
_LOCKED = "configuration has been locked|loading external extensions is disabled|is not in the catalog"

READS = [
    f"SELECT *, (SELECT content FROM read_text({place})) AS x FROM rows"
    for place in ("'{folder}/secret'", "'{folder}/.tmp/secret'", "'.tmp/secret'", "'http://127.0.0.1:1/'")
] + [
    "SELECT *, (SELECT count(*) FROM glob('.tmp/*')) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM read_blob('.tmp/secret')) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM read_csv('.tmp/secret')) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM read_json('.tmp/secret')) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM read_parquet('{folder}/secret')) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM '{folder}/secret.csv') AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM sniff_csv('.tmp/secret')) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM query('FROM read_text(''.tmp/secret'')')) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM "
    "json_execute_serialized_sql(json_serialize_sql('FROM read_text(''.tmp/secret'')'))) AS x FROM rows",
    "SELECT *, getenv('SLUICE_SECRET') AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM local_table) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM arrow_scan(1, 2, 3)) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM pandas_scan(1)) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM sqlite_scan('{folder}/a.db', 't')) AS x FROM rows",
]
WRITES = [
    "WITH x AS (COPY (FROM (SELECT 1)) TO '.tmp/stolen') SELECT * FROM rows",
    "WITH x AS (COPY (FROM (SELECT 1)) TO '{folder}/stolen') SELECT * FROM rows",
    "SELECT *, (SELECT count(*) FROM query('COPY (SELECT 1) TO ''.tmp/stolen''')) AS x FROM rows",
    "SELECT *, (SELECT count(*) FROM enable_logging(storage='file')) AS x FROM rows",
]
STATEMENTS = [
    "COPY (SELECT 1) TO '{folder}/stolen'", "ATTACH '{folder}/stolen.db'", "EXPORT DATABASE '{folder}/stolen'",
    "INSTALL httpfs", "LOAD httpfs", "SET enable_external_access = true", "RESET lock_configuration",
    "PRAGMA database_list", "CALL checkpoint()", "CREATE TABLE kept AS SELECT 1",
    "CREATE OR REPLACE MACRO lower(x) AS 'evil'", "CREATE SECRET (TYPE s3)", "EXPLAIN ANALYZE SELECT * FROM rows",
    "SELECT * FROM rows; COPY (SELECT 1) TO '{folder}/stolen'",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the process, with a secret in it and in DuckDB's usual folder for temporary files."""
    (tmp_path / ".tmp").mkdir()
    for name in ("secret", "secret.csv", ".tmp/secret"):
        (tmp_path / name).write_text("secret")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sql, "_free", [])  # DuckDB takes its folders from where the process is when it opens
    monkeypatch.setenv("SLUICE_SECRET", "secret")
    return tmp_path


def _files(folder: Path) -> dict[Path, str]:
    return {
        path: path.read_text() for path in folder.rglob("*") if path.is_file() and path.suffix not in {".sql", ".yaml"}
    }


@pytest.mark.parametrize("text", READS + WRITES)
def test_a_query_reaches_no_file_network_or_variable(folder: Path, text: str) -> None:
    local_table = rows(row())  # DuckDB would find it by its name in the calling frames
    before = _files(folder)
    rule = engine(folder, "  - {name: mine, path: r.sql, type: sql}\n", r__sql=text.replace("{folder}", str(folder)))
    with pytest.raises(RuleError, match=f"(?i){_CLOSED}|{_LOCKED}|single SELECT") as caught:
        rule.apply(local_table, TABLE)
    assert "'mine'" in caught.value.message
    assert _files(folder) == before


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_rule_is_one_select(folder: Path, text: str) -> None:
    before = _files(folder)
    rule = engine(folder, "  - {name: mine, path: r.sql, type: sql}\n", r__sql=text.replace("{folder}", str(folder)))
    with pytest.raises(RuleError, match=r"has to be (a|one) SELECT"):
        rule.apply(rows(row()), TABLE)
    assert _files(folder) == before


@pytest.mark.parametrize(
    "where",
    [
        "(SELECT count(*) FROM read_text('.tmp/secret')) > 0",
        "1 = 1) UNION (SELECT length(content) FROM read_text('.tmp/secret')",
        "1 = 1; COPY (SELECT 1) TO '.tmp/stolen'",
        "1 = 1 -- and the rest",
    ],
)
def test_the_condition_of_a_filter_reaches_no_file(folder: Path, where: str) -> None:
    before = _files(folder)
    rule = engine(folder, f'  - {{name: mine, builtin: filter, params: {{where: "{where}"}}}}\n')
    with pytest.raises(RuleError, match=f"(?i){_CLOSED}|without ; or --"):
        rule.apply(rows(row()), TABLE)
    assert _files(folder) == before


def test_a_query_leaves_nothing_for_the_next(folder: Path) -> None:
    """Connections are used again: whatever a query could define would hold for the rules of other pipelines."""
    for text in ("CREATE TEMP TABLE kept AS SELECT 1", "SET VARIABLE kept = 1", "BEGIN", "PREPARE kept AS SELECT 1"):
        with pytest.raises(RuleError, match="has to be a SELECT"):
            engine(folder, "  - {name: mine, path: r.sql, type: sql}\n", r__sql=text).apply(rows(row()), TABLE)
    after = engine(
        folder,
        "  - {name: next, path: n.sql, type: sql}\n",
        n__sql="SELECT * FROM rows WHERE getvariable('kept') IS NULL",
    )
    assert len(result(after.apply(rows(row()), TABLE))) == 1
