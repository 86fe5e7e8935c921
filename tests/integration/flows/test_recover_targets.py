"""A loss at a target that is no MySQL: restored from a backup, replaced by an empty one, its checkpoint edited.

In the end both sides are equal.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import SluiceError
from sluice.sources.mysql.reader.warm_up import compile_kernels
from tests.support.pipelines.case import Case, case
from tests.support.running.command_line import printed
from tests.support.running.waiting import wait_until
from tests.support.tables.numbered import deliver, insert


class PostgreSQL:
    """A schema of a server."""

    def __init__(self, server: Any, schema: str) -> None:
        self.server, self.schema = server, schema

    @contextmanager
    def pipeline(self, folder: Path, source: Any, zookeeper: Any) -> Iterator[Case]:
        extra = f"    options: {{ack_schema: {self.schema}}}"
        with case(folder, source, self.server, zookeeper, self.schema, kind="postgresql", target_extra=extra) as made:
            yield made

    def rows(self) -> list[int]:
        return [row[0] for row in self.server.execute(f'SELECT id FROM "{self.schema}".t ORDER BY id')]

    def save(self) -> None:
        names = [
            row[0] for row in self.server.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.schema}'")
        ]
        self.saved = names
        self.server.execute(*(f'CREATE TABLE "{self.schema}_saved_{n}" AS TABLE "{self.schema}"."{n}"' for n in names))

    def restore(self) -> None:
        for name in self.saved:
            self.server.execute(
                f'DELETE FROM "{self.schema}"."{name}"',
                f'INSERT INTO "{self.schema}"."{name}" SELECT * FROM "{self.schema}_saved_{name}"',
                f'DROP TABLE "{self.schema}_saved_{name}"',
            )

    def empty(self) -> None:
        self.server.execute(f'DROP SCHEMA "{self.schema}" CASCADE', f'CREATE SCHEMA "{self.schema}"')

    def edit(self) -> None:
        self.server.execute(f"UPDATE \"{self.schema}\"._sluice_ack SET batch = batch - 1 WHERE scope = ''")


class Delta:
    """A folder with tables."""

    def __init__(self, folder: Path, schema: str) -> None:
        from tests.support.readers.lakes import Lake

        self.lake, self.schema = Lake(folder / "lake"), schema

    @contextmanager
    def pipeline(self, folder: Path, source: Any, zookeeper: Any) -> Iterator[Case]:
        with case(folder, source, self.lake, zookeeper, self.schema, kind="delta") as made:
            yield made

    def rows(self) -> list[int]:
        return sorted(self.lake.rows(self.schema, "t")["id"].to_pylist())

    def save(self) -> None:
        shutil.copytree(self.lake.folder, self.lake.folder.with_suffix(".saved"))

    def restore(self) -> None:
        self.empty()
        shutil.copytree(self.lake.folder.with_suffix(".saved"), self.lake.folder, dirs_exist_ok=True)

    def empty(self) -> None:
        for path in self.lake.folder.iterdir():
            shutil.rmtree(path)

    def edit(self) -> None:
        import deltalake

        [folder] = self.lake.folder.glob("_sluice*/**/_delta_log")
        table = deltalake.DeltaTable(str(folder.parent))
        name = "sluice.checkpoint"
        held = json.loads(table.metadata().configuration[name])
        table.alter.set_table_properties(
            {name: json.dumps({**held, "batch": held["batch"] - 1})}, raise_if_not_exists=False
        )


class Iceberg(Delta):
    """A folder with tables and their catalog, which stays the same file: this process has it open."""

    def __init__(self, folder: Path, schema: str) -> None:
        from tests.support.readers.lakes import IcebergLake

        self.lake, self.schema = IcebergLake(folder / "lake"), schema

    @contextmanager
    def pipeline(self, folder: Path, source: Any, zookeeper: Any) -> Iterator[Case]:
        with case(folder, source, self.lake, zookeeper, self.schema, kind="iceberg") as made:
            yield made

    def empty(self) -> None:
        catalog = self.lake.catalog()
        for namespace in ((self.schema,), ("_sluice", "case")):
            for name in catalog.list_tables(namespace):
                catalog.drop_table(name)
        for path in self.lake.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)

    def edit(self) -> None:
        table = self.lake.catalog().load_table(("_sluice", "case", "copy"))
        held = json.loads(table.properties["sluice.checkpoint"])
        changed = {"sluice.checkpoint": json.dumps({**held, "batch": held["batch"] - 1})}
        table.transaction().set_properties(changed).commit_transaction()


class Kafka:
    """Topics of a broker. There is no backup of them: a topic that is put back has other offsets."""

    def __init__(self, server: Any, schema: str) -> None:
        self.server, self.schema = server, schema

    @contextmanager
    def pipeline(self, folder: Path, source: Any, zookeeper: Any) -> Iterator[Case]:
        from tests.support.pipelines.kafka_pipelines import captured

        with captured(folder, source, self.server, zookeeper, self.schema) as made:
            yield made

    def rows(self) -> list[int]:
        from tests.support.readers.kafka_reading import read

        newest = {message.key: message.document for message in read(self.server, *self._own(rows=True))}
        after = [(one.get("payload", one))["after"] for one in newest.values() if one is not None]
        return sorted(row["id"] for row in after if row is not None)

    def _own(self, *, rows: bool = False) -> list[str]:
        from tests.support.readers.kafka_reading import topics_of

        found = [name for name in topics_of(self.server) if self.schema in name]
        return [name for name in found if name.endswith(".t")] if rows else found

    def empty(self) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        for future in admin.delete_topics(self._own()).values():
            future.result(30)
        wait_until(lambda: not self._own(), "the topics' end")

    def edit(self) -> None:
        from confluent_kafka import Producer

        from tests.support.readers.kafka_reading import read

        [topic] = [name for name in self._own() if name.startswith(f"{self.schema}-")]
        last = read(self.server, topic)[-1]
        producer = Producer({"bootstrap.servers": self.server.bootstrap})
        producer.produce(
            topic, key=last.key, value=json.dumps({**last.document, "batch": last.document["batch"] - 1}), partition=0
        )
        assert producer.flush(30) == 0


@pytest.fixture(params=["postgresql", "delta", "iceberg", "kafka"])
def side(request: pytest.FixtureRequest, tmp_path: Path, mysql_source: Any, fresh_schema: Any) -> Any:
    compile_kernels()
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(40))")
    if request.param == "postgresql":
        request.getfixturevalue("fresh_pg_schema")(schema)
        return PostgreSQL(request.getfixturevalue("postgresql"), schema)
    if request.param == "delta":
        pytest.importorskip("deltalake")
        return Delta(tmp_path, schema)
    if request.param == "iceberg":
        pytest.importorskip("pyiceberg")
        return Iceberg(tmp_path, schema)
    return Kafka(request.getfixturevalue("kafka"), schema)


def look(made: Case, *options: str) -> dict[str, Any]:
    """Return what the command found and did. It ends with 1 where a person has to remove rows afterwards."""
    told = printed(("recover", "case", "--json", *options), made.environment, codes=(0, 1))
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    return found


def goes_on(made: Case, side: Any, *ids: int) -> None:
    """What is left to do is done, and the pipeline delivers."""
    made.run_until_head()
    assert side.rows() == list(ids)
    deliver(made, 99)
    assert side.rows() == [*ids, 99]
    assert [one["severity"] for one in look(made)["findings"] if one["severity"] != "ok"] == []


def test_losses_at_the_target(side: Any, tmp_path: Path, mysql_source: Any, zookeeper: Any) -> None:
    with side.pipeline(tmp_path, mysql_source, zookeeper) as made:
        made.cli("check", "case", "--apply", "--yes")
        made.run_until_head()
        deliver(made, 1, 2)
        ids = [1, 2]
        if hasattr(
            side, "save"
        ):  # restored from a backup: noticed at the next load, which loads what is missing by itself
            side.save()
            deliver(made, 3, 4)
            mysql_source.execute(f"DELETE FROM `{made.schema}`.t WHERE id = 2")
            made.run_until_head()
            side.restore()
            assert side.rows() == [1, 2]
            deliver(made, 5)
            ids = [1, 3, 4, 5]
            assert side.rows() == ids
        for number, loss in enumerate((side.edit, side.empty), 10):
            loss()
            insert(made, number)
            ids.append(number)
            with pytest.raises(SluiceError, match="sluice recover case"):  # also with a producer that this process has
                made.run_until_head()
            [question] = look(made)["questions"]
            assert question["subject"] == "copy"
            assert {"copy", "verify"} <= set(question["choices"])
            done = look(made, "--apply", "--yes", "--choose", "copy=copy")
            assert done["applied"]
            made.run_until_head()
            assert side.rows() == ids
        goes_on(made, side, *ids)
