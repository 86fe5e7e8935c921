"""A user's own message format: found as a file and as a package, it passes the suite, and targets and subscribers send it."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sluice.cli import all_commands
from sluice.errors import ConfigError, LoadError
from sluice.flows.load.units import LoadUnit
from sluice.formats import FORMATS, Format, OwnFormat, contract, format_of, kinds, named
from sluice.operations.stored import tail
from sluice.targets.contract import Bench, Pipe, changed, gone, new, people
from sluice.targets.http.options import HttpOptions
from tests.support.benches.http_bench import HttpBench
from tests.support.pipelines.subscribing import by_http, documents, shop_case, write
from tests.support.running.packages import install
from tests.support.servers.http_receiver import Receiver
from tests.support.tables.product_changes import OLD, ROW, change

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's formats folder, with the starter in it as the format ``flat``."""
    made = tmp_path / "formats"
    monkeypatch.setenv("SLUICE_FORMATS", str(made))
    result = CliRunner().invoke(all_commands(), ["formats", "new", "flat"])
    assert result.exit_code == 0, result.output
    return made


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that knows no folder of formats but what ``environment`` names."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SLUICE_FORMATS"))}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**kept, "PYTHONPATH": str(REPOSITORY / "include"), **environment},
        capture_output=True, text=True, timeout=280, check=False
    )  # fmt: skip


# the suite ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flat", *FORMATS])
@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda one: one.__name__)
def test_the_starter_and_each_built_in_format_pass_the_suite(
    check: Callable[[Format], None], name: str, folder: Path
) -> None:
    check(format_of(name))


@pytest.mark.parametrize(
    ("check", "returns"),
    [
        (contract.documents_are_json, "row: (one, one)"),
        (contract.documents_are_json, "row: ('name: scooter',)"),
        (contract.documents_are_json, "row: ('{\\n}',)"),
        (contract.documents_are_json, "row: (str(len(made.after['price'])),)"),
        (contract.documents_are_json, "statement: (made.sql,)"),
        (contract.values_in_values_out, "row: (str(next(COUNT)),)"),
        (contract.values_in_values_out, "row: (one, (made.before or {}).pop('name', None))[:1]"),
    ],
)
def test_each_check_finds_a_format_that_is_wrong_in_it(
    check: Callable[[Format], None], returns: str, folder: Path
) -> None:
    """The format is the starter but for what one of its functions returns."""
    function, _, code = returns.partition(": ")
    lines = [
        "import itertools", "from dataclasses import replace", "from sluice.formats.starter import FORMAT as START",
        "COUNT = itertools.count()", "def wrong(made, source):", f"    one, = START.{function}(made, source)",
        f"    return {code}", f"FORMAT = replace(START, {function}=wrong)",
    ]  # fmt: skip
    (folder / "wrong.py").write_text("\n".join(lines))
    for each in contract.CHECKS:
        if each is check:
            with pytest.raises((AssertionError, ValueError, LoadError)):
                each(format_of("wrong"))
        elif "price" not in code and "(one, one)" not in code:
            each(format_of("wrong"))


# where it is sent -----------------------------------------------------------------------------------------------------


def kafka_documents(server: Any, options: dict[str, Any]) -> tuple[Bench, Callable[[], list[Any]]]:
    from tests.support.benches.kafka_bench import KafkaBench
    from tests.support.readers import kafka_reading

    bench = KafkaBench(server, "all", {"tombstones": False, **options})
    return bench, lambda: [one.document for one in kafka_reading.read(server, f"{bench.schema}.people")]


def rabbitmq_documents(server: Any, options: dict[str, Any]) -> tuple[Bench, Callable[[], list[Any]]]:
    from tests.support.benches.rabbitmq_bench import RabbitMQBench

    bench = RabbitMQBench(server, "all", {"exchange": "changes", **options})
    return bench, lambda: [json.loads(one.body) for one in bench.messages()]


def redis_documents(server: Any, options: dict[str, Any]) -> tuple[Bench, Callable[[], list[Any]]]:
    from tests.support.benches.redis_bench import RedisBench

    bench = RedisBench(server, "all", options)
    read = bench.client.xrange
    return bench, lambda: [json.loads(one[b"value"]) for _, one in read(f"{bench.schema}.people")]


@pytest.mark.promise("C3")
@pytest.mark.parametrize(
    ("server", "opened"),
    [("kafka", kafka_documents), ("rabbitmq", rabbitmq_documents), ("redis_server", redis_documents)],
    ids=["kafka", "rabbitmq", "redis"],
)
def test_a_message_broker_gets_a_users_own_format(
    server: str, opened: Callable[..., Any], folder: Path, request: pytest.FixtureRequest
) -> None:
    bench, received = opened(request.getfixturevalue(server), {"format": "flat"})
    table = people(bench.schema)
    bench.create_table(table)
    Pipe(bench).deliver((table, [new(1, "a", 5), changed((1, "a", 5), (1, "ü", 6)), gone(1, "ü", 6)]))
    name = f"{bench.schema}.people"
    assert [(one["table"], one["op"], one["row"]) for one in received()] == [
        (name, "i", {"id": 1, "email": "a", "points": 5}),
        (name, "u", {"id": 1, "email": "ü", "points": 6}),
        (name, "d", {"id": 1, "email": "ü", "points": 6}),
    ]


@pytest.mark.promise("C3")
@pytest.mark.parametrize("changes", ["latest", "all"])
def test_a_web_server_gets_a_users_own_format_from_a_worker_without_the_folder(
    changes: str, folder: Path, tmp_path: Path
) -> None:
    with Receiver() as receiver:
        bench, table = HttpBench(receiver, changes, {"format": "flat"}), people("shop")
        pipe = Pipe(bench)
        [[unit]] = pipe.writer(pipe.given([(table, [new(1, "a", 1)])])).plan(1)
        (tmp_path / "unit").write_bytes(pickle.dumps(LoadUnit(unit, None, None)))
        done = run(
            "import pickle, sys; from sluice.flows.load.units import run_load_unit; "
            "run_load_unit(pickle.load(open(sys.argv[1], 'rb')))",
            str(tmp_path / "unit"),
            SLUICE_FORMATS=str(tmp_path / "none"),
        )
        assert done.returncode == 0, done.stderr
        [got] = receiver.taken
        [document] = got.documents
    assert (document["source"], document["table"], document["op"]) == ("p", "shop.people", "i")
    assert document["row"] == {"id": 1, "email": "a", "points": 1}


def test_subscribers_and_tail_get_a_users_own_format(
    folder: Path, tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any
) -> None:
    twins = (twin_source, twin_target, twin_zookeeper)
    with shop_case(tmp_path, twins, fresh_schema(twin_source, twin_target)) as made:
        write(made, "INSERT INTO orders VALUES (1, 10, 'a')", "DELETE FROM orders WHERE id = 1")
        told = [json.loads(line) for line in tail(made.runtime(), fmt="flat", from_batch=1, follow=False)]
        rows = [one for one in told if "row" in one]
        assert [(one["op"], one["row"]["v"]) for one in rows] == [("i", 10), ("d", 10)]
        with by_http(made) as client:
            assert documents(client.get("/pipelines/case/changes", params={"format": "flat"})) == rows
            wrong = client.get("/pipelines/case/changes", params={"format": "flatt"})
            assert wrong.status_code == 400
            assert "did you mean 'flat'" in wrong.json()["detail"]


def test_rows_of_an_own_format_are_not_read_back(folder: Path, kafka: Any) -> None:
    from tests.support.benches.kafka_bench import KafkaBench

    assert KafkaBench(kafka, "latest", {"format": "flat"}).target().comparer() is None  # type: ignore[attr-defined]
    assert KafkaBench(kafka, "latest").target().comparer() is not None  # type: ignore[attr-defined]


# how it is found ------------------------------------------------------------------------------------------------------


def test_a_name_is_taken_once(folder: Path) -> None:
    for name in ("flat", "arrow", "Not-A-Name"):
        result = CliRunner().invoke(all_commands(), ["formats", "new", name])
        assert isinstance(result.exception, ConfigError), name
    (folder / "arrow.py").write_text("FORMAT = None\n")
    with pytest.raises(ConfigError, match="two message formats 'arrow'"):
        kinds()


def test_an_unknown_format_names_the_known_ones(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'flatt' does not exist; did you mean 'flat'\?.*known formats: canal-json, "
    ):
        named("flatt")
    with pytest.raises(ConfigError, match="'arrow' does not exist"):
        named("arrow")  # Kafka's alone
    with pytest.raises(ValueError, match=r"'debezium_json' does not exist; did you mean 'debezium-json'\?"):
        HttpOptions(format="debezium_json")
    offered = HttpOptions.model_json_schema()["properties"]["format"]["anyOf"]
    assert offered == [{"enum": list(FORMATS)}, {"type": "string"}]


def test_naming_a_format_runs_none_of_it(folder: Path) -> None:
    (folder / "broken.py").write_text("raise SystemExit\n")
    assert isinstance(HttpOptions(format="broken").format, OwnFormat)


def test_a_package_brings_a_format_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_FORMATS", str(tmp_path / "none"))
    code = (
        "from sluice.formats import Format\n\nMINE = Format(lambda change, source: ('{}',), lambda made, source: ())\n"
    )
    points = "[sluice.formats]\nmine = my_format:MINE\n"
    install(monkeypatch, tmp_path / "site", "my-format", entry_points=points, modules={"my_format": code})
    assert kinds()["mine"].origin == "package my-format"
    assert format_of("mine").row(change("i", None, ROW), "shop") == ("{}",)


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        ("change.no_such_thing", "failed at a change of inventory.products: AttributeError"),
        ("()", "did not return a tuple of 1 to 2 texts"),
        ("('{}', '{}', '{}')", "did not return a tuple of 1 to 2 texts"),
        ("'{}'", "did not return a tuple"),
        ("(b'{}',)", "did not return a tuple"),
    ],
)
def test_errors_name_the_format_and_its_file(folder: Path, returns: str, said: str) -> None:
    text = f"from sluice.formats import Format\ndef row(change, source):\n    return {returns}\nFORMAT = Format(row, row)\n"
    (folder / "wrong.py").write_text(text)
    with pytest.raises(LoadError, match=said) as raised:
        format_of("wrong").row(change("u", OLD, ROW), "shop")
    assert (raised.value.where or "").startswith(str(folder / "wrong.py"))
    assert "'wrong'" in str(raised.value)


def test_an_error_shows_no_value_of_the_row(folder: Path) -> None:
    code = "from sluice.formats import Format\ndef row(change, source):\n    raise ValueError(change.after)\n"
    (folder / "loud.py").write_text(f"{code}FORMAT = Format(row, row)\n")
    with pytest.raises(LoadError, match=r"failed at a change of inventory\.products: ValueError") as raised:
        format_of("loud").row(change("i", None, ROW), "shop")
    assert ROW["name"] not in "".join(traceback.format_exception(raised.value))
    assert raised.value.where == f"{folder}/loud.py:3"


def test_a_file_without_a_format(folder: Path) -> None:
    (folder / "silent.py").write_text("")
    with pytest.raises(ConfigError, match=r"a file of the formats folder ends with FORMAT = Format\(row, statement\)"):
        format_of("silent")
    (folder / "odd.py").write_text("FORMAT = print\n")
    with pytest.raises(ConfigError, match=r"is a builtin_function_or_method, not a sluice\.formats\.Format"):
        format_of("odd")


def test_the_page_is_right(tmp_path: Path) -> None:
    """The format of docs/formats.md and its test, as they are printed."""
    page = (REPOSITORY / "docs/formats.md").read_text()
    code, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "formats").mkdir()
    (tmp_path / "formats/flat.py").write_text(code)
    (tmp_path / "test_flat.py").write_text(test)
    done = run(
        "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))",
        "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path / "test_flat.py"),
        SLUICE_FORMATS=str(tmp_path / "formats"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "2 passed" in done.stdout
