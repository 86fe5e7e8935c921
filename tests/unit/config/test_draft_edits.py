"""A pipeline file in the form of the editor: nothing of it is lost, whatever is chosen."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sluice.config.draft_edits import applied, field_of, opened
from sluice.config.loading import parse_model
from sluice.config.pipeline import PipelineConfig

TEXT = r"""# The shop, as the reports need it.
version: 1
pipeline: shop  # never rename
description: 'For reports'
source: {connection: shop_mysql, server_id: 77}
capture:
  include: ['shop\.orders', shop\.customers]
  exclude: ["shop\\.tmp_.*"]
window: 3
# where rows go
mapping:
  - from: shop.orders
    to: reporting.orders
    columns: {exclude: [note], rename: {ts: created_at}}  # the note is private
  - {from: other.*, to: archive.*}
targets:
  # the reports
  - name: reporting
    type: mysql
    connection: reporting_mysql
    consistency: batch  # as the reports add up
  - {name: archive, type: mysql, connection: archive_mysql}
"""


def choices(text: str = TEXT) -> dict[str, Any]:
    found = opened(text).choices
    assert found is not None
    return found


def comments(text: str) -> list[str]:
    return re.findall(r"# .*", text)


def test_a_file_is_shown_and_says_what_the_form_does_not_show() -> None:
    found = choices()
    assert (found["pipeline"], found["connection"], found["start"]) == ("shop", "shop_mysql", "")
    assert [(one["schema"], one["table"], one["to"], one["exclude"]) for one in found["tables"]] == [
        ("shop", "orders", "reporting.orders", ["note"]),
        ("shop", "customers", "", []),
    ]
    assert [one["was"] for one in found["targets"]] == ["reporting", "archive"]
    assert opened(TEXT).kept == ["window", "source.server_id", "capture.exclude", "targets.reporting.consistency"]


def test_what_is_not_changed_stays_to_the_letter() -> None:
    assert applied(TEXT, choices()) == TEXT


def test_a_change_touches_nothing_else() -> None:
    found = choices()
    found["description"] = "For all"
    found["targets"][0]["name"] = "reports"
    found["targets"][1]["connection"] = "attic"
    found["tables"][0]["exclude"] = ["note", "card"]
    found["tables"].append({"schema": "shop", "table": "items", "to": "reporting.items", "exclude": [], "rename": {}})
    text = applied(TEXT, found)
    made = parse_model(text, "the test", PipelineConfig)
    assert [one.name for one in made.targets] == ["reports", "archive"]
    assert made.targets[0].consistency == "batch"
    assert made.targets[1].connection == "attic"
    assert made.capture.include == (r"shop\.orders", r"shop\.customers", r"shop\.items")
    assert [(one.from_, one.to) for one in made.mapping] == [
        ("shop.orders", "reporting.orders"),
        ("other.*", "archive.*"),
        ("shop.items", "reporting.items"),
    ]
    assert made.mapping[0].columns.exclude == ("note", "card")
    assert (made.window, made.source.server_id) == (3, 77)
    assert comments(text) == comments(TEXT)


def test_a_table_and_a_target_that_are_removed_take_nothing_with_them() -> None:
    found = choices()
    del found["tables"][0], found["targets"][1]
    text = applied(TEXT, found)
    made = parse_model(text, "the test", PipelineConfig)
    assert made.capture.include == (r"shop\.customers",)
    assert [one.from_ for one in made.mapping] == ["other.*"]
    assert [one.name for one in made.targets] == ["reporting"]
    assert set(comments(text)) == set(comments(TEXT)) - {"# the note is private"}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (r"shop\.customers", "shop\\..*_log", "more than one table"),
        ("  include: ['shop\\.orders', shop\\.customers]\n", "", "names no tables one by one"),
        ("name: archive", "name: reporting", "reporting is there twice"),
        ("from: other.*", "from: shop.orders", "shop.orders is there twice"),
    ],
)
def test_what_the_form_cannot_show_is_named(old: str, new: str, why: str) -> None:
    assert old in TEXT
    found = opened(TEXT.replace(old, new))
    assert found.choices is None
    assert any(why in one for one in found.lost), found.lost


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("pipeline", "name"),
        ("source.connection", "source"),
        ("source.start", "start"),
        ("targets.1.type", "target:1"),
        ("targets", "targets"),
        ("mapping.0.columns.exclude", "table:shop.orders"),
        ("mapping.9", "tables"),
        ("capture.include", "tables"),
        ("window", ""),
    ],
)
def test_a_config_path_has_its_field(path: str, field: str) -> None:
    assert field_of(TEXT, path.split(".")) == field
