"""What manifests say of statements: kinds, definitions before and after, databases."""

from __future__ import annotations

import pytest

from sluice.model.schema_changes import ChangeKind, TableChange
from tests.support.pipelines.case import case


@pytest.mark.promise("A5")
def test_statements_stand_in_the_manifests_with_what_they_did(
    tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema
) -> None:
    db = fresh_schema(mysql_source, mysql_target)
    other = f"{db}_more"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, db) as made:
        made.path.write_text(made.yaml.replace(f"{db}\\\\..*", f"{db}.*\\\\..*"))
        made.run_until_head()
        made.source.execute(
            f"CREATE DATABASE `{other}`",
            f"CREATE TABLE `{other}`.a (id INT PRIMARY KEY, v VARCHAR(5))",
            f"ALTER TABLE `{other}`.a MODIFY v VARCHAR(9), ADD w INT",
            f"RENAME TABLE `{other}`.a TO `{other}`.b",
            f"DROP DATABASE `{other}`",
            "CREATE DATABASE IF NOT EXISTS `unconcerned`",
            "DROP DATABASE `unconcerned`",
        )
        made.run_until_head()
        runtime = made.runtime()
        with runtime.state() as state:
            records = [
                r
                for n in state.batches.numbers()
                for r in runtime.store.read_manifest(state.batches.require(n).manifest).ddl
            ]
    changes = [[TableChange.from_json(c) for c in record.changes] for record in records]
    K = ChangeKind
    assert [[kind for c in some for kind in c.kinds] for some in changes] == [
        [K.CREATE_DATABASE], [K.CREATE_TABLE], [K.WIDEN_COLUMN, K.ADD_COLUMN], [K.RENAME_TABLE],
        [K.DROP_TABLE, K.DROP_DATABASE],
    ]  # fmt: skip
    altered = changes[2][0]
    assert altered.before is not None
    assert altered.after is not None
    assert [c.name for c in altered.before.columns] == ["id", "v"]
    assert [(c.name, c.type) for c in altered.after.columns] == [("id", "int"), ("v", "varchar(9)"), ("w", "int")]
    assert str(changes[3][0].renamed_to) == f"{other}.b"
    assert "DROP DATABASE" in records[-1].sql
