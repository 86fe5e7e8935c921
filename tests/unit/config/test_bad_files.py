"""Whatever a file that a person wrote is, reading it ends with its values or with a ConfigError that names it, and no
other file is hidden.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.config.engine import EngineConfig
from sluice.config.loading import find_pipeline, load_model, load_pipeline, parse_model
from sluice.config.pipeline import PipelineConfig, is_cron, parse_size, parse_span
from sluice.errors import ConfigError
from sluice.rules import RuleSet

PLAIN = "version: 1\npipeline: good\nsource: {connection: a}\ntargets: [{name: t, type: mysql, connection: b}]\n"


def laughs(levels: int) -> str:
    """Aliases of aliases: 10 to the power of ``levels`` values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


BYTES: dict[str, bytes] = {
    "not UTF-8": b"pipeline: \xff\xfe\x80",
    "UTF-16": PLAIN.encode("utf-16"),
    "a null byte": b"pipeline: a\x00b",
    "a control character": b"pipeline: a\x1b[2J",
    "an escaped control character": b'pipeline: "a\\x1b[2J"',
    "a lone surrogate": b'description: "\\ud800"',
    "half of a character": "pipeline: é".encode()[:-1],
    "nothing": b"",
    "blanks": b"\n \n\t\n",
    "a list": b"- a\n- b\n",
    "a number": b"7",
    "two documents": b"a: 1\n---\nb: 2\n",
    "brackets": b"a: " + b"[" * 100_000,
    "braces": b"a: " + b"{a: " * 100_000,
    "dashes": b"- " * 100_000 + b"x",
    "indentation": b"\n".join(b" " * n + b"a:" for n in range(500)),
    "a bomb of aliases": laughs(12).encode(),
    "an alias of itself": b"a: &a [*a]",
    "a merge of itself": b"a: &a {<<: *a}",
    "a number of 5,000 digits": b"window: " + b"9" * 5000,
    "a date that no calendar has": b"a: 1\ndescription: 2020-99-99",
    "a tag of Python's": b"a: !!python/object/apply:os.system [ls]",
    "a tag that does not fit": b"a: !!int x",
    "another YAML": b"%YAML 9.9\n---\na: 1",
    "a large file": b"# " + b"x" * 2**20,
    "keys twice": b"pipeline: a\npipeline: b\n",
    "a key that is a list": b"? [a, b]\n: c\n",
    "a key that is a mapping": b"? {a: b}\n: c\n",
}


@pytest.mark.parametrize("name", BYTES)
def test_any_bytes_are_a_file_or_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(BYTES[name])
    for load in (load_pipeline, lambda p: load_model(p, EngineConfig), RuleSet.load):
        with pytest.raises(ConfigError) as caught:
            load(path)  # type: ignore[operator]
        assert (caught.value.where or "").startswith(str(path))
        str(caught.value).encode()


def _directory(path: Path) -> None:
    path.mkdir()


def _unreadable(path: Path) -> None:
    path.write_text(PLAIN)
    path.chmod(0)


KINDS: dict[str, Callable[[Path], None]] = {
    "a directory": _directory,
    "a pipe": lambda path: os.mkfifo(path),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a file that may not be read": _unreadable,
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_of_path_is_an_error(tmp_path: Path, kind: str) -> None:
    if kind == "a file that may not be read" and os.geteuid() == 0:
        pytest.skip("root may read it")
    path = tmp_path / "bad.yaml"
    KINDS[kind](path)
    with pytest.raises(ConfigError, match=r"cannot read bad\.yaml"):
        load_pipeline(path)
    engine = tmp_path / "engine.yaml"
    engine.write_text("rules:\n  - name: one\n    path: bad.yaml\n")
    with pytest.raises(ConfigError, match="rule 'one'") as caught:
        RuleSet.load(engine)
    assert caught.value.where == f"{engine}:3"


@pytest.mark.slow
def test_a_bad_file_hides_no_other(tmp_path: Path) -> None:
    for number, content in enumerate(BYTES.values()):
        (tmp_path / f"bad{number}.yaml").write_bytes(content)
    os.mkfifo(tmp_path / "apipe.yaml")
    (tmp_path / os.fsdecode(b"\xff\xfe.yaml")).write_text("x")
    (tmp_path / "good.yaml").write_text(PLAIN)
    assert find_pipeline("good", tmp_path).pipeline == "good"
    with pytest.raises(ConfigError, match="did you mean 'good'") as caught:
        find_pipeline("goood", tmp_path)
    assert "bad0.yaml" in str(caught.value)
    with pytest.raises(ConfigError):
        find_pipeline("bad3", tmp_path)
    for odd in ("a" * 5000 + ".yaml", "a\x00.yaml", "..", "", "\ud800.yaml"):
        with pytest.raises(ConfigError):
            find_pipeline(odd, tmp_path)
    said = subprocess.run(
        [sys.executable, "-m", "sluice.cli", "status"],
        env={
            **os.environ,
            "SLUICE_PIPELINES": str(tmp_path),
            "AIRFLOW_CONN_A": '{"conn_type": "mysql", "host": "127.0.0.1", "port": 1}',
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": '{"conn_type": "zookeeper", "host": "127.0.0.1:1"}',
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert "good" in said.stdout
    assert f"{tmp_path}/bad0.yaml:1" in said.stderr
    assert "Traceback" not in said.stderr


REFUSED = {
    "window: true": "not a number",
    "window: .inf": "finite",
    "window: 0": "greater than or equal to 1",
    "version: true": "not a number",
    "rules: ''": "at least 1",
    "schedule: 0s": "not an interval",
    "schedule: 99999d": "too long|not an interval",
    "schedule: '61 * * * *'": "not a schedule",
    "schedule: 'a b c d e'": "not a schedule",
    "verify: {schedule: continuous}": "not a schedule; write a cron",
    "verify: {schedule: '0 25 * * *'}": "not a schedule",
    "verify: {schedule: 0s}": "not an interval",
    "verify: {sample: 10}": "a text is expected",
    "verify: {sample: 0%}": "not a share; write 10%",
    "verify: {sample: 100.1%}": "not a share",
    "verify: {sample: nan%}": "not a share",
    "verify: {smaple: 10%}": "smaple",
    "verify: {method: sweep}": "needs verify.digest: log",
    "alert_lag: 99999999999999d": "too long",
    "alert_lag: 9999999999999999999999d": "not a duration",
    "alert_lag: -1s": "not a duration",
    "alert_lag: nan s": "not a duration",
    "alert_lag: true": "not a duration",
    "retry: {attempts: 99999999999}": "less than or equal",
    "source: {connection: a, server_id: 0}": "greater than or equal to 1",
    "source: {connection: a, server_id: -1}": "greater than or equal to 1",
    "source: {connection: a, server_id: 99999999999}": "4294967295",
    "source: {connection: a, server_id: 4294967296}": "4294967295",
    "source: {connection: a, start: snapshot}": "a source does not start from a snapshot",
    "source: {connection: a, start: {timestamp: soon}}": "not a time",
    "source: {connection: a, start: {offset: 7}}": "exactly one of",
    "source: {connection: a, start: {gtid: '', offset: 7}}": "offset needs file",
    "source: {connection: a, start: {file: ../../etc/passwd}}": "pattern",
    "source: {connection: ''}": "at least 1",
    "capture: {events: []}": "at least 1",
    "capture: {include: []}": "at least 1",
    "capture: {include: ['a{99999999999999}']}": "not a regular expression",
    "capture: {include: ['" + "(" * 900 + ")" * 900 + "']}": "not a regular expression|brackets nest",
    "capture: {include: ['" + "a" * 5000 + "']}": "too long",
    "capture: {max_event: 5GiB}": "less than or equal",
    "capture: {batch: {max_bytes: " + "9" * 400 + "}}": "less than or equal",
    "capture: {batch: {max_bytes: " + "9" * 400 + "MiB}}": "not a size",
    "capture: {batch: {max_bytes: 0}}": "greater than 0",
    "capture: {batch: {max_bytes: -1}}": "greater than 0",
    "capture: {batch: {max_bytes: .nan}}": "not a size",
    "capture: {segments: {retain: 99999999999999d}}": "too long",
    "coordination: {session_timeout: 9999d}": "less than or equal",
    "coordination: {session_timeout: 1ms}": "greater than or equal",
    "coordination: {grace: 30d}": "less than or equal",
    "coordination: {root: /a/../b}": "not a path",
    "coordination: {root: /a/./b}": "not a path",
    "coordination: {root: /zookeeper/x}": "not a path",
    "coordination: {root: /a//b}": "pattern",
    "coordination: {root: /a/}": "pattern",
    "coordination: {root: a}": "pattern",
    "coordination: {root: /}": "pattern",
    "mapping: [{from: 'a.b(', to: c.d}]": "not a regular expression",
    "mapping: [{from: 'a.(b)', to: 'c.\\2'}]": "does not go with from, which has 1 group",
    "mapping: [{from: 'a.(b)', to: 'c.\\g<x>'}]": "does not go with from",
    "mapping: [{from: 'a_(.*).*', to: 'c_\\3.*'}]": "does not go with from",
    "mapping: [{from: a., to: c.d}]": "empty",
    "mapping: [{from: a.b, to: c.d, columns: {exclude: [x, x]}}]": "twice",
    "mapping: [{from: a.b, to: c.d, columns: {convert: {x: {type: 'int; drop table y'}}}}]": "not an SQL type",
    "mapping: [{from: a.b, to: c.d, columns: {convert: {x: {time_zone: Europe}}}}]": "no time zone",
    "mapping: [{from: a.b, to: c.d, columns: {excluded: [x]}}]": "did you mean 'exclude'",
    "dump: {max_rows_per_second: 1e30}": "integer|less than|finite",
    "dump: {delay: 400d}": "less than or equal",
}


@pytest.mark.parametrize("line", REFUSED)
def test_nonsense_is_refused_with_its_line(line: str) -> None:
    key = line.partition(":")[0]
    text = "\n".join([*(part for part in PLAIN.splitlines() if not part.startswith(f"{key}:")), line])
    with pytest.raises(ConfigError, match=REFUSED[line]) as caught:
        parse_model(text, "p.yaml", PipelineConfig)
    assert caught.value.where == f"p.yaml:{len(text.splitlines())}"
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    "line",
    [
        "coordination: {root: /a, session_timeout: 500ms, grace: 0s}",
        "source: {connection: a, server_id: 4294967295}",
        "source: {connection: a, start: {file: binlog.000001}}",
        "schedule: '*/5 1-3,7 * jan-mar mon'",
        "mapping: [{from: 'shop_(\\d+)\\.(\\w+)', to: 'all.\\2_\\1'}]",
        "mapping: [{from: 'shop_(\\d+).*', to: 'copy_\\1.*'}]",
        "mapping: [{from: a.b, to: c.d, columns: {convert: {x: {type: \"enum('a;b','c''d')\"}}}}]",
        "capture: {batch: {max_wait: 0s, max_bytes: 1.5GiB}}",
    ],
)
def test_what_makes_sense_is_taken(line: str) -> None:
    key = line.partition(":")[0]
    text = "\n".join([*(part for part in PLAIN.splitlines() if not part.startswith(f"{key}:")), line])
    parse_model(text, "p.yaml", PipelineConfig)


@pytest.mark.parametrize("text", ["a", "", "1 2", "٣s", "1e3s", "1sec", "1.s", ".5s", "1s\x00"])
def test_spans_and_sizes_are_plain_numbers(text: str) -> None:
    for parse in (parse_span, parse_size):
        with pytest.raises(ValueError, match="is not a"):
            parse(text)


def test_cron_expressions() -> None:
    assert is_cron("0 0 1 1 0")
    assert is_cron("*/15 0-23/2 1,15 jan,jul sun-sat")
    for wrong in (
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "* * * *",
        "@daily",
    ):
        assert not is_cron(wrong)


def test_a_password_in_a_store_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="contains a password") as caught:
        parse_model(PLAIN + "capture: {segments: {uri: 's3://key:hush@bucket/x'}}", "p.yaml", PipelineConfig)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert "hush" not in str(chain)
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


WRONG: dict[str, tuple[list[str], str]] = {
    "a grace without an end": (["restart", "good", "--grace", "1e308"], "a grace of 1e.308 s is out of range"),
    "a grace that is no number": (["restart", "good", "--grace", "nan"], "a grace of nan s is out of range"),
    "a grace below zero": (["restart", "good", "--grace", "-1"], "a grace of -1 s is out of range"),
    "a target to skip that is not there": (["skip", "good", "nosuch", "3", "--yes"], "has no target 'nosuch'.*t"),
    "a target to redeliver to that is not there": (["redeliver", "good", "nosuch"], "has no target 'nosuch'.*t"),
    "a pipeline that is not there": (["status", "goood"], "did you mean 'good'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_before_a_server_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from sluice.cli import all_commands

    arguments, said = WRONG[name]
    (tmp_path / "good.yaml").write_text(PLAIN)
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("SLUICE_STORE", (tmp_path / "store").as_uri())
    done = CliRunner().invoke(all_commands(), arguments)
    assert isinstance(done.exception, ConfigError), (done.exception, done.output)
    assert re.search(said, str(done.exception)), str(done.exception)
