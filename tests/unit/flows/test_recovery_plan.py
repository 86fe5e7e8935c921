"""What a plan of ``sluice recover`` says, without servers."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError
from sluice.model.batches import Batch, BatchNumber, Epoch
from sluice.model.offset import Offset
from sluice.operations.recover.plan import Measure, Question, RecoveryPlan
from sluice.operations.recover.segments import _lost_for_streams
from sluice.targets.registry import KINDS, equal_again


def measure(subject: str, **fields: Any) -> Measure:
    return Measure(subject, (f"does {subject}",), lambda: None, **fields)


def test_a_plan_asks_until_every_question_has_an_answer() -> None:
    choices = {"dump": measure("source", cost="much"), "verify": measure("source", after="sluice verify p --repair")}
    plan = RecoveryPlan("p", (), (measure("segments"),), (Question("source", "the log is another one", choices),))
    assert not plan.whole
    with pytest.raises(ConfigError, match="the log is another one; nothing was done") as caught:
        plan.require_answers()
    assert "--choose source=dump or --choose source=verify" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="'copy' is no choice for source"):
        plan.answered({"source": "copy"})
    answered = plan.answered({"source": "verify", "other": "ignored"})
    answered.require_answers()
    assert [m.subject for m in answered.measures] == ["segments", "source"]
    assert answered.after == ("sluice verify p --repair",)
    assert plan.to_json()["questions"][0]["choices"]["dump"]["cost"] == "much"


def test_targets_of_every_change_are_told_what_they_lack() -> None:
    place = Offset.at("u", "binlog.000001", 4)
    batch = Batch(BatchNumber(3), Epoch(1), "c", "m", place, Offset.at("u", "binlog.000001", 90), 7, 100)
    targets = [
        {"name": name, "type": "kafka", "connection": "c", "changes": changes}
        for name, changes in (("stream", "all"), ("rows", "latest"))
    ]
    for chosen, said in ((targets, 1), (targets[1:], 0)):
        pipeline = PipelineConfig.model_validate({
            "pipeline": "p", "source": {"connection": "c"}, "targets": chosen,
        })  # fmt: skip
        lost = _lost_for_streams(SimpleNamespace(pipeline=pipeline), [batch])  # type: ignore[arg-type]
        assert len(lost) == said
        assert all(
            "stream (changes: all): the 7 changes from binlog.000001:4 to binlog.000001:90" in one for one in lost
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_way_back_of_a_table_is_one_that_its_kind_takes(kind: str) -> None:
    """A range of keys that a kind refuses is not asked for; rows that only the target has are then removed by verify."""
    pipeline = PipelineConfig.model_validate({
        "pipeline": "p", "source": {"connection": "c"},
        "targets": [{"name": name, "type": kind, "connection": "c"} for name in ("copy", "other")],
    })  # fmt: skip
    commands = re.findall(r"`([^`]*)`", equal_again(pipeline, "copy", "s.t"))
    dump = "sluice dump start p --target copy --table s.t"
    if kind in {"memory", "mysql", "oracle", "postgresql"}:
        assert commands == [f"{dump} --replace"]
    elif kind in {"http", "rabbitmq"}:
        assert commands == [dump]
    else:
        assert commands == [dump, "sluice verify run p --target copy --table s.t --repair"]
    every = pipeline.model_copy(
        update={"targets": [one.model_copy(update={"changes": "all"}) for one in pipeline.targets]}
    )
    assert "verify" not in equal_again(every, "copy")
