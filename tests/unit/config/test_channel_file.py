"""The channel file: what is valid, what is refused with which sentence, and what it makes of its pipelines."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.config.channel import ONE_WAY, ChannelConfig, Channels, channel_json_schema, find_channel
from sluice.config.loading import parse_model
from sluice.config.pipeline import Event, PipelineConfig
from sluice.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[3]
TEXT = "channel: a_b\npipelines: [a_to_b, b_to_a]\nmain: a\n"


def channel(more: str = "", text: str = TEXT) -> ChannelConfig:
    return parse_model(text + more, "a_b.yaml", ChannelConfig)


def pipeline(name: str, more: str = "") -> PipelineConfig:
    text = f"pipeline: {name}\nsource: {{connection: x}}\ntargets: [{{name: t, type: mysql, connection: y}}]\n{more}"
    return parse_model(text, f"{name}.yaml", PipelineConfig)


def folder(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT + "ddl: [a_to_b, b_to_a]\n", ONE_WAY),
        (TEXT + "ddl: a_to_c\n", "ddl: 'a_to_c' is no pipeline of this channel"),
        (TEXT + "marks: {c_to_b: quiet}\n", "'c_to_b' is no pipeline of this channel"),
        (TEXT + "gracce: 5s\n", "there is no such key"),
        (TEXT + "key: short\n", "at least 16"),
        (TEXT.replace("main: a", "main: c"), "main: 'c' is neither a_to_b nor b_to_a"),
        (TEXT.replace("b_to_a", "a_to_b"), "twice"),
        ("channel: a_b\npipelines: [a_to_b]\nmain: a\n", "pipelines"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        channel(text=text)


def test_the_main_site_is_named_by_its_pipeline_or_how_that_begins() -> None:
    assert channel().main_pipeline == "a_to_b"
    assert channel(text=TEXT.replace("main: a", "main: b_to_a")).main_pipeline == "b_to_a"


def test_only_one_pipeline_takes_ddl_from_its_log() -> None:
    made = channel()
    assert Event.DDL in made.adapted(pipeline("a_to_b")).capture.events
    assert Event.DDL not in made.adapted(pipeline("b_to_a")).capture.events
    with pytest.raises(ConfigError, match=ONE_WAY):
        made.adapted(pipeline("b_to_a", "capture: {events: [insert, ddl]}\n"))
    assert Event.DDL in channel("ddl: b_to_a\n").adapted(pipeline("b_to_a")).capture.events


def test_a_pipeline_drops_what_its_partner_loaded_and_nothing_else(tmp_path: Path) -> None:
    star = folder(tmp_path, a_b=TEXT, a_c=TEXT.replace("b", "c"))
    found = Channels(star)
    [mark, other] = [found.mark(pipeline(name)) for name in ("a_to_b", "c_to_a")]
    assert mark is not None
    assert other is not None
    partner, star_arm = found.rules(pipeline("b_to_a")), found.rules(pipeline("a_to_b"))
    assert partner is not None
    assert star_arm is not None
    token = partner.read(mark.token("1"))
    assert token is not None
    assert partner.drops(token)
    of_c = star_arm.read(other.token("1"))  # what C sent to A goes on to B
    assert of_c is not None
    assert not star_arm.drops(of_c)


def test_looping_back_the_other_site_sends_what_the_main_site_sent(tmp_path: Path) -> None:
    found = Channels(folder(tmp_path, a_b=TEXT + "consistency: loop_back\n"))
    for reader, loader, comes_back in (("b_to_a", "a_to_b", True), ("a_to_b", "b_to_a", False)):
        mark, rules = found.mark(pipeline(loader)), found.rules(pipeline(reader))
        assert mark is not None
        assert rules is not None
        token = rules.read(mark.token("1"))
        assert token is not None
        assert (rules.drops(token), rules.sends_back) == (not comes_back, comes_back)
        assert rules.two_way  # both sites are checked as sites of a channel


def test_sites_that_send_changed_columns() -> None:
    """Not where all comes back, and not with rules, which work on whole rows."""
    changed = "mapping: [{from: a.*, to: a.*, send: changed_columns}]\n"
    for name in ("a_to_b", "b_to_a"):
        with pytest.raises(ConfigError, match=f"{name} sends changed columns of a"):
            channel("consistency: loop_back\n").adapted(pipeline(name, changed))
        with pytest.raises(ConfigError, match=rf"{name}, which has rules \(engine.yaml\), sends changed columns of a"):
            channel("consistency: time_intersection\n").adapted(pipeline(name, f"{changed}rules: engine.yaml\n"))
        for consistency in ("time_intersection", "none"):
            assert channel(f"consistency: {consistency}\n").adapted(pipeline(name, changed)).mapping


def test_what_is_in_conflict_is_told_by_the_merge() -> None:
    """A target that gets every change would get all that comes back."""
    made = channel("consistency: time_intersection\n")
    every = pipeline("b_to_a").model_copy(
        update={"targets": tuple(t.model_copy(update={"changes": "all"}) for t in pipeline("b_to_a").targets)}
    )
    with pytest.raises(ConfigError, match="target t of b_to_a gets every change"):
        made.adapted(every)
    assert made.adapted(every.model_copy(update={"pipeline": "a_to_b"})).targets


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_the_other_site_is_not_emptied(kind: str) -> None:
    """The hint says which line to write, and with it the pipeline works in the channel."""
    for name in ("a_to_b", "b_to_a"):
        given = pipeline(name)
        copies = [t.model_copy(update={"on_conversion": "copy", "type": kind}) for t in given.targets]
        with pytest.raises(ConfigError, match="empties a table: what channel a_b has not sent back") as raised:
            channel().adapted(given.model_copy(update={"targets": tuple(copies)}))
        told = re.search(r"write on_conversion: (\w+) at target (\w+) of (\w+):", raised.value.hint or "")
        assert told
        assert told.groups()[1:] == (copies[0].name, name)
        stops = [t.model_copy(update={"on_conversion": told[1]}) for t in copies]
        assert channel().adapted(given.model_copy(update={"targets": tuple(stops)})).targets


def test_a_lake_beside_the_channel_may_be_copied_again() -> None:
    given = pipeline("a_to_b")
    lake = given.targets[0].model_copy(update={"name": "lake", "type": "delta", "on_conversion": "copy"})
    assert channel().adapted(given.model_copy(update={"targets": (*given.targets, lake)})).targets


def test_late_changes_are_read_back_after_a_minute_unless_told_otherwise() -> None:
    assert channel().read_back_after == timedelta(minutes=1)
    assert channel("read_back_after: 5m\n").read_back_after == timedelta(minutes=5)
    assert channel("read_back_after: null\n").read_back_after is None
    with pytest.raises(ConfigError, match="read_back_after"):
        channel("read_back_after: 10ms\n")


def test_pipelines_outside_of_channels_look_at_no_marks(tmp_path: Path) -> None:
    found = Channels(folder(tmp_path, a_b=TEXT))
    assert found.mark(pipeline("x_to_y")) is None
    assert found.rules(pipeline("x_to_y")) is None
    marked = found.mark(pipeline("x_to_y", "mark: quiet\n"))
    rules = found.rules(pipeline("y_to_z", "ignore_marks: [quiet]\n"))
    assert marked is not None
    assert rules is not None
    token = rules.read(marked.token("1"))
    assert token is not None
    assert rules.drops(token)
    assert not rules.two_way


def test_a_pipeline_belongs_to_one_channel(tmp_path: Path) -> None:
    found = Channels(folder(tmp_path, one=TEXT, two=TEXT.replace("channel: a_b", "channel: other")))
    with pytest.raises(ConfigError, match="in several channels: a_b, other"):
        found.of("a_to_b")
    assert found.of("x_to_y") is None


def test_a_file_that_cannot_be_read_stops_the_pipelines_that_it_names(tmp_path: Path) -> None:
    found = Channels(folder(tmp_path, a_b=TEXT + "no_such_key: 1\n"))
    with pytest.raises(ConfigError, match="no such key"):
        found.of("b_to_a")
    assert found.of("x_to_y") is None


def test_a_channel_is_found_by_its_name(tmp_path: Path) -> None:
    made = folder(tmp_path, some_file=TEXT)
    assert find_channel("a_b", made)[1].pipelines == ("a_to_b", "b_to_a")
    with pytest.raises(ConfigError, match="there is no channel 'a_bb'"):
        find_channel("a_bb", made)


def test_the_stored_schema_is_current() -> None:
    path = REPOSITORY / "include/channels/schema.json"
    assert path.read_text(encoding="utf-8") == channel_json_schema(), "run `sluice schema --write`"
