"""Files that rows name, through the flows of a pipeline: copied before their rows are loaded, missing, refused."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from structlog.testing import capture_logs

from sluice.config.connections import Endpoint
from sluice.config.pipeline import RowFiles
from sluice.config.references import connections
from sluice.config.resolved import ResolvedConnections
from sluice.errors import ConfigError, FileMissing, MappingError, StorageUnavailable
from sluice.flows.capture.drain import drain
from sluice.flows.load import load as loading
from sluice.flows.transform import file_progress
from sluice.flows.transform.merge import merge
from sluice.flows.transform.named_files import FileWork, _TableFiles
from sluice.model.tables import TableId
from sluice.operations.check import check
from sluice.operations.deadletters.replay import replay
from sluice.operations.deadletters.store import letters
from sluice.operations.metrics import gauges, samples
from sluice.operations.rule_stats import files_in_words, newest_files
from sluice.operations.status import status
from sluice.row_files.local_folder import LocalFolder
from sluice.segments.store import SegmentStore
from sluice.spark.local import LocalRunner
from tests.support.pipelines.case import Case, case

Shop = Callable[..., "Files"]
TABLE = "CREATE TABLE `{db}`.a (id INT PRIMARY KEY, path VARCHAR(80), version INT, note VARCHAR(20))"


class Files:
    """A pipeline whose rows name files of one folder, which it copies to another."""

    def __init__(self, shop: Case, root: Path) -> None:
        self.shop, self.source, self.target = shop, root / "from", root / "to"

    def put(self, name: str, text: str) -> None:
        (self.source / name).parent.mkdir(parents=True, exist_ok=True)
        (self.source / name).write_text(text)

    def sql(self, *statements: str) -> None:
        self.shop.source.execute(*(one.format(t=f"`{self.shop.schema}`.a") for one in statements))

    def run(self, *statements: str) -> None:
        self.sql(*statements)
        self.shop.run_until_head()

    def insert(self, *rows: tuple[int, str | None]) -> None:
        values = [f"({number}, {'NULL' if path is None else repr(path)}, 1, '')" for number, path in rows]
        self.sql(f"INSERT INTO {{t}} VALUES {', '.join(values)}")

    @property
    def copied(self) -> dict[str, str]:
        found = (path for path in self.target.rglob("*") if path.is_file() and ".sluice" not in path.parts)
        return {str(path.relative_to(self.target)): path.read_text() for path in found}

    @property
    def rows(self) -> list[int]:
        return [row[0] for row in self.shop.target.execute(f"SELECT id FROM `{self.shop.schema}`.a ORDER BY id")]

    def counts(self) -> dict[str, int]:
        runtime = self.shop.runtime()
        with runtime.state() as state:
            return newest_files(runtime.store, [state.batches.require(number) for number in state.batches.numbers()])


@pytest.fixture
def pipeline(tmp_path: Path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Shop]:
    opened = []

    def make(*, extra: str = "", target_extra: str = "", **settings: str) -> Files:
        schema = fresh_schema(twin_source, twin_target)
        for server in (twin_source, twin_target):
            server.execute(TABLE.format(db=schema))
        for name in ("from", "to"):
            (tmp_path / name).mkdir(exist_ok=True)
        given = {
            "path": "path",
            "version": "version",
            "from": f"{tmp_path}/from",
            "to": f"file://{tmp_path}/to",
            **settings,
        }
        line = ", ".join(f"{key}: {value}" for key, value in given.items() if value)
        yaml = f"mapping:\n  - {{from: {schema}.a, to: {schema}.a, files: [{{{line}}}]}}\n{extra}"
        context = case(
            tmp_path, twin_source, twin_target, twin_zookeeper, schema, extra=yaml, target_extra=target_extra
        )
        opened.append(context)
        made = Files(context.__enter__(), tmp_path)
        made.run()
        return made

    yield make
    for context in opened:
        context.__exit__(None, None, None)


@pytest.mark.promise("B26")
def test_a_file_is_there_before_its_row_is_loaded(pipeline: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = pipeline()
    there: list[dict[str, str]] = []
    original = loading.load

    def look(*args: object, **named: object) -> object:
        there.append(shop.copied)
        return original(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("sluice.flows.load.isolation.load", look)
    shop.put("p/1.png", "one")
    shop.insert((1, "p/1.png"), (2, None), (3, ""))
    shop.run()
    assert there[0] == {"p/1.png": "one"}
    assert shop.rows == [1, 2, 3]


def test_only_changed_files_are_fetched_and_a_repeat_costs_nothing(pipeline: Shop) -> None:
    shop = pipeline()
    for name in ("a", "b"):
        shop.put(name, "one")
    shop.insert((1, "a"), (2, "b"))
    shop.run()
    assert shop.counts().items() >= {"copied": 2, "unchanged": 0, "missing": 0, "bytes": 6, "batch": 1}.items()
    shop.put("a", "two!")
    shop.run("UPDATE {t} SET version = 2 WHERE id = 1", "UPDATE {t} SET note = 'x' WHERE id = 2")
    assert (shop.counts()["copied"], shop.counts()["unchanged"]) == (1, 0)
    assert shop.copied == {"a": "two!", "b": "one"}
    os.remove(shop.source / "a")  # a repeat asks the source for nothing
    shop.run("DELETE FROM {t} WHERE id = 1")
    shop.run("INSERT INTO {t} VALUES (1, 'a', 2, '')")
    assert (shop.counts()["copied"], shop.counts()["unchanged"]) == (0, 1)
    shop.run("DELETE FROM {t} WHERE id = 1")
    assert shop.copied == {"a": "two!", "b": "one"}, "the file of a deleted row stays"


def test_a_retry_after_a_failed_file_copies_only_what_is_missing(pipeline: Shop) -> None:
    shop = pipeline()
    shop.put("a", "one")
    shop.insert((1, "a"), (2, "late"))
    with pytest.raises(FileMissing, match=r"\(id=2\) names the file 'late' in column path: it is not there"):
        shop.run()
    assert shop.rows == [], "no row of the batch is loaded without the file of another one"
    assert shop.copied == {"a": "one"}
    shop.put("late", "two")
    shop.run()
    assert shop.rows == [1, 2]
    assert shop.copied == {"a": "one", "late": "two"}
    assert (shop.counts()["copied"], shop.counts()["unchanged"]) == (1, 1)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "link/secret", "file:///etc/hostname", ".sluice/x"])
def test_a_row_cannot_name_a_file_elsewhere(pipeline: Shop, name: str) -> None:
    shop = pipeline(on_missing="row_without")
    outside = shop.source.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (shop.source.parent / "secret").write_text("secret")
    (shop.source / "link").symlink_to(outside)
    shop.insert((1, name))
    shop.run()
    assert shop.rows == [1]
    assert shop.copied == {}
    assert shop.counts()["missing"] == 1


def test_rows_without_their_files_are_loaded_and_get_them_with_the_next_change(pipeline: Shop) -> None:
    shop = pipeline(on_missing="row_without", version="")
    shop.insert((1, "late"))
    shop.run()
    assert (shop.rows, shop.copied) == ([1], {})
    shop.put("late", "x")
    shop.run("UPDATE {t} SET note = 'other' WHERE id = 1")
    assert shop.copied == {"late": "x"}
    shop.put("late", "changed")
    shop.run("UPDATE {t} SET note = 'again' WHERE id = 1")
    assert shop.copied == {"late": "x"}, "it is not asked for any more when another column changes"


def test_rows_without_their_files_wait_as_dead_letters_and_are_replayed(pipeline: Shop) -> None:
    shop = pipeline(on_missing="dead_letter")
    shop.put("a", "one")
    shop.insert((1, "a"), (2, "late"), (3, "../x"))
    shop.run()
    assert shop.rows == [1]
    found = letters(shop.shop.runtime())
    assert [(one.by, one.op, one.key, one.waiting) for one in found] == [
        ("row-files", "insert", {"id": 2}, ("copy",)),
        ("row-files", "insert", {"id": 3}, ("copy",)),
    ]
    assert found[0].reason == "the file 'late' in column path: it is not there"
    assert "x" not in found[1].reason.split(":")[1]
    again = replay(shop.shop.runtime(), [], by="test")
    assert [(one.outcome, "is not there" in one.why) for one in again] == [("failed", True), ("failed", False)]
    shop.put("late", "two")
    assert [one.outcome for one in replay(shop.shop.runtime(), [found[0].id], by="test", dry_run=True)] == ["replayed"]
    assert "late" not in shop.copied, "a dry run copies nothing"
    assert [one.outcome for one in replay(shop.shop.runtime(), [found[0].id], by="test")] == ["replayed"]
    assert shop.copied == {"a": "one", "late": "two"}
    assert shop.rows == [1, 2]


def test_a_delete_goes_over_although_the_file_is_missing(pipeline: Shop) -> None:
    shop = pipeline(on_missing="dead_letter")
    shop.put("a", "one")
    shop.insert((1, "a"))
    shop.run()
    shop.run("UPDATE {t} SET id = 2, path = 'b' WHERE id = 1")
    assert shop.rows == [], "the row left its old key, and waits under its new one"
    assert [one.key for one in letters(shop.shop.runtime())] == [{"id": 2}]


def test_units_travel_to_workers_with_the_logins_and_never_show_them(
    pipeline: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units are sent as Spark sends them; the login of a location goes along, and is in no text."""
    shop = pipeline(**{"from": "https://static.example.org/x", "from_connection": "cdn"})
    shop.shop.connections["cdn"] = json.dumps({"conn_type": "http", "host": "static.example.org", "password": "hidden"})
    sent: list[object] = []

    def run(runner: object, function: Callable[[object], object], units: list[object], **named: object) -> list[object]:
        del runner, named
        sent.extend(units)
        return [pickle.loads(cloudpickle.dumps(function))(pickle.loads(cloudpickle.dumps(unit))) for unit in units]

    def opened(address: str, endpoint: Endpoint | None, **named: object) -> LocalFolder:
        assert (address, endpoint and endpoint.password) == ("https://static.example.org/x", "hidden")
        return LocalFolder(str(shop.source))

    monkeypatch.setattr(LocalRunner, "run", run)
    monkeypatch.setattr("sluice.flows.transform.named_files.open_source", opened)
    shop.put("a", "x")
    shop.insert((1, "a"))
    shop.run()
    assert shop.copied == {"a": "x"}
    assert "cdn" in connections(shop.shop.runtime().pipeline)
    assert sent
    assert "hidden" not in repr(sent)


def test_two_locations_whose_files_would_replace_each_other_are_refused(pipeline: Shop, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mapping.1.files.0.to: files from another location go there"):
        pipeline(extra=f"  - {{from: x.b, to: x.b, files: [{{path: p, from: /other, to: {tmp_path}/to}}]}}\n")


def test_rules_decide_which_files_are_copied(pipeline: Shop) -> None:
    """Rules run first: a row that they drop names no file, and they may make the path."""
    shop = pipeline(extra="rules: engine.yaml\n")
    rules = shop.shop.folder / "rules"
    (rules / "mine.py").write_text(
        "def transform(row, context):\n    return None if row['id'] == 1 else {**row, 'path': 'made/' + row['path']}\n"
    )
    (rules / "engine.yaml").write_text("rules:\n  - {name: mine, path: mine.py}\n")
    for name in ("a", "b", "made/b"):
        shop.put(name, name)
    shop.insert((1, "a"), (2, "b"))
    shop.run()
    assert shop.copied == {"made/b": "made/b"}


@pytest.mark.parametrize("task", ["fused", "own"])
def test_a_row_that_waits_passes_the_rules_once(pipeline: Shop, task: str) -> None:
    """The rule makes the path; a dead letter holds the row as it came into the rules, whichever task they run in."""
    shop = pipeline(extra="rules: engine.yaml\n", on_missing="dead_letter")
    rules = shop.shop.folder / "rules"
    (rules / "mine.py").write_text("def transform(row, context):\n    return {**row, 'path': row['path'] + '.png'}\n")
    (rules / "engine.yaml").write_text(f"rules:\n  - {{name: mine, path: mine.py, task: {task}}}\n")
    shop.put("a.png", "x")
    shop.insert((1, "a"), (2, "late"))
    shop.run()
    assert (shop.copied, shop.rows) == ({"a.png": "x"}, [1])
    assert shop.counts()["copied"] == 1
    shop.put("late.png", "y")
    assert [one.outcome for one in replay(shop.shop.runtime(), [], by="test")] == ["replayed"]
    assert (shop.copied, shop.rows) == ({"a.png": "x", "late.png": "y"}, [1, 2])
    assert [row[0] for row in shop.shop.target.execute(f"SELECT path FROM `{shop.shop.schema}`.a ORDER BY id")] == [
        "a.png",
        "late.png",
    ]


def test_a_batch_copied_twice_at_the_same_time_ends_the_same(pipeline: Shop) -> None:
    shop = pipeline()
    for number in range(30):
        shop.put(f"f{number}", str(number))
    shop.insert(*((number, f"f{number}") for number in range(30)))
    runtime = shop.shop.runtime()
    with runtime.source.open() as source:
        drain(runtime, idle_wait_s=0.05, until=source.head, claim="test")
    errors: list[BaseException] = []

    def once() -> None:
        try:
            merge(shop.shop.runtime(), 1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=once) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert shop.copied == {f"f{number}": str(number) for number in range(30)}


@pytest.mark.parametrize(
    ("known", "wanted"),
    [("path", [True]), ("path version", [True]), ("note", [False]), ("version", "binlog_row_image = 'FULL'")],
)
def test_partial_rows_name_files_only_by_a_path_that_the_log_has(tmp_path: Path, known: str, wanted: Any) -> None:
    columns = ["id", "path", "version", "note"]
    user = {"id": pa.array([1]), "path": pa.array(["a"]), "version": pa.array([2]), "note": pa.array(["x"])}
    before = pa.StructArray.from_arrays(
        [pa.array([1]), *(pa.array([None], column.type) for column in list(user.values())[1:])], columns
    )
    present = pa.array([
        bytes([sum(1 << number for number, name in enumerate(columns) if name in f"id {known}".split())])
    ])
    rows = pa.table({**user, "_op": ["u"], "_seq": pa.array([7], pa.uint64()), "_before": before, "_present": present})
    files = RowFiles.model_validate({"path": "path", "version": "version", "from": "/from", "to": "/to"})
    store = SegmentStore(f"file://{tmp_path}", "p")
    part = _TableFiles(FileWork(ResolvedConnections({}), store, 1, "u"), TableId("s", "a"), rows, files)
    if isinstance(wanted, str):
        with pytest.raises(MappingError, match="contains only the columns that changed") as refused:
            part._changed("path", "version")
        assert wanted in str(refused.value)
    else:
        assert part._changed("path", "version").tolist() == wanted


def test_masked_names_are_shown_nowhere(pipeline: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop = pipeline(extra='masked: [".*[.]path"]\n')
    shop.insert((1, "secret.png"))
    with pytest.raises(FileMissing) as stopped:
        shop.run()
    assert "secret" not in str(stopped.value)
    assert "'***'" in str(stopped.value)
    assert "secret" not in capsys.readouterr().out


def test_a_column_that_rows_lack_stops_the_batch_and_check_says_so(pipeline: Shop) -> None:
    shop = pipeline(path="pth")
    [error] = [one for one in check(shop.shop.runtime()).findings if one.severity == "error"]
    assert (error.setting, error.value) == ("files: path", "pth")
    assert "did you mean 'path'" in error.why
    shop.insert((1, "a"))
    with pytest.raises(MappingError, match="'pth'"):
        shop.run()


@pytest.mark.parametrize("gone", ["from", "to"])
def test_a_location_that_is_gone_is_an_outage_and_no_missing_file(pipeline: Shop, gone: str) -> None:
    shop = pipeline(on_missing="row_without")
    folder = shop.source if gone == "from" else shop.target
    folder.rename(folder.with_name("away"))
    [error] = [one for one in check(shop.shop.runtime()).findings if one.severity == "error"]
    assert error.part == "files"
    assert f"{folder} is not there" in error.why
    shop.insert((1, "a"))
    with pytest.raises(StorageUnavailable, match="is not there"):
        shop.run()
    assert shop.rows == []
    folder.with_name("away").rename(folder)
    shop.put("a", "x")
    shop.run()
    assert (shop.rows, shop.copied) == ([1], {"a": "x"})
    assert not [one for one in check(shop.shop.runtime()).findings if one.severity == "error"]
    assert not [one for one in os.listdir(shop.target / ".sluice") if one.startswith("check")]


def test_progress_and_bytes_per_second_are_in_log_status_and_metrics(
    pipeline: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = pipeline()
    monkeypatch.setattr(file_progress, "EVERY_S", 0.0)
    seen: list[dict[str, int]] = []
    original = file_progress.FileProgress.__call__

    def look(progress: file_progress.FileProgress, totals: object) -> None:
        original(progress, totals)  # type: ignore[arg-type]
        seen.append(shop.counts())

    monkeypatch.setattr(file_progress.FileProgress, "__call__", look)
    for number in range(3):
        shop.put(f"f{number}", "x" * 1000)
    shop.insert(*((number, f"f{number}") for number in range(3)))
    with capture_logs() as said:
        shop.run()
    assert {"files_copied", "files_in_progress"} <= {line["event"] for line in said}
    assert [(one["in_progress"], one["of"]) for one in seen] == [(1, 3), (2, 3), (3, 3)]
    now = status(shop.shop.runtime())
    assert (now.files["copied"], now.files["bytes"], now.files["batch"]) == (3, 3000, 1)
    assert now.files["bytes_per_s"] > 0
    assert "in_progress" not in now.files
    assert "batch 1: 3 copied (2.9 KiB, " in files_in_words(now.files)
    assert "files, batch 1: 3 copied" in shop.shop.cli("status", "case").stdout
    assert json.loads(shop.shop.cli("status", "case", "--json").stdout)
    assert gauges(samples(now))["sluice.case.files.copied"] == 3.0
    assert gauges(samples(now))["sluice.case.files.bytes_per_s"] > 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"on_mising": "stop"}, r"files.0.on_mising: there is no such key; did you mean 'on_missing'\?"),
        ({"on_missing": "skip"}, r"yaml:\d+: mapping.0.files.0.on_missing"),
        ({"to": "https://example.org/x"}, r"files.0.to: files are not written to a web server"),
        ({"to": "elsewhere"}, r"files.0.to: 'elsewhere' is no address"),
        ({"to": "s3://k:secret@bucket/x"}, r"files.0.to: the address contains a password"),
        ({"from": "https://example.org/x?token=1"}, r"files.0.from: the address of a web server has no query"),
        ({"version": "path"}, r"files.0.version: path and version are the same column"),
        ({"timeout": "0s"}, r"files.0.timeout"),
        ({"max_size": "0"}, r"files.0.max_size"),
        ({"to_connection": "aws"}, r"files.0.to_connection: a folder of this machine takes no login"),
    ],
)
def test_settings_are_refused_with_file_and_line(pipeline: Shop, settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        pipeline(**settings)
    assert "secret" not in str(refused.value)


def test_a_target_of_every_change_takes_no_dead_letters_of_files(pipeline: Shop) -> None:
    with pytest.raises(ConfigError, match=r"files.0.on_missing: target copy has changes: all"):
        pipeline(on_missing="dead_letter", target_extra="    changes: all")


def test_a_copy_onto_itself_is_refused(pipeline: Shop, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"files.0.to: files would be copied onto themselves"):
        pipeline(to=f"{tmp_path}/from/")
