"""Options of a kind are refused with the line of the pipeline's file, whatever reads them and whenever."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from sluice.config.connections import Endpoint
from sluice.config.loading import parse_model
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError
from sluice.targets import open_target
from sluice.targets.options import options_of

PIPELINE = """\
pipeline: shop
source: {connection: mysql_shop}
targets:
  - {name: copy, type: memory, connection: mysql_copy}
  - name: lake
    type: house
    connection: lake
    options:
      location: /lake
      retries:
        - {after: 3}
        - {after: -1}
      locaton: /typo
"""


class Retry(BaseModel):
    model_config = ConfigDict(extra="forbid")
    after: int = Field(ge=0)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    location: str
    retries: list[Retry] = []


def refused(text: str, name: str = "lake") -> ConfigError:
    pipeline = parse_model(text, "pipelines/shop.yaml", PipelineConfig)
    with pytest.raises(ConfigError) as caught:
        options_of(pipeline.target(name), Options)
    return caught.value


def test_each_problem_has_its_line() -> None:
    error = refused(PIPELINE)
    assert str(error).splitlines() == [
        "target 'lake': 2 problems in its options [SLUICE-CONFIG-ERROR]:",
        "  pipelines/shop.yaml:12: options.retries.1.after: it has to be greater than or equal to 0",
        "  pipelines/shop.yaml:13: options.locaton: house targets have no such option; did you mean 'location'?",
    ]
    assert error.where == "pipelines/shop.yaml:12"


def test_one_problem_is_one_sentence_with_its_line() -> None:
    error = refused(PIPELINE.replace("-1", "1"))
    assert str(error) == (
        "target 'lake': options.locaton: house targets have no such option; did you mean 'location'? "
        "[SLUICE-CONFIG-ERROR at pipelines/shop.yaml:13]"
    )
    assert refused(PIPELINE, "copy").where == "pipelines/shop.yaml:4", "a missing option stands where its target does"


def test_the_place_goes_with_the_target_to_workers_and_is_no_part_of_it() -> None:
    here, there = (parse_model(PIPELINE, name, PipelineConfig) for name in ("a.yaml", "b.yaml"))
    assert here == there
    moved: Any = pickle.loads(pickle.dumps(here)).target("lake")
    assert moved.where("options") == "a.yaml:8"
    assert here.model_dump() == there.model_dump()


def test_a_type_that_does_not_exist_has_its_line() -> None:
    config = parse_model(PIPELINE, "pipelines/shop.yaml", PipelineConfig).target("lake")
    with pytest.raises(ConfigError, match="target 'lake' has the type 'house', which does not exist") as caught:
        open_target(config, Endpoint, "shop")
    assert caught.value.where == "pipelines/shop.yaml:6"
