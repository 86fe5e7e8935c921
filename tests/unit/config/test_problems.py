"""Problems that pydantic finds are said once, in our words, with the name that was probably meant, and without
values.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sluice.config.problems import Problem, problems_of


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    after: int = Field(ge=0)


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")
    location: str
    parts: list[Part] = Field([Part(after=1)], min_length=1)
    named: dict[str, Part] = {}
    either: int | Part = 1

    @field_validator("location")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("write a path from the root")
        return value


def problems(given: dict[str, Any], **words: Any) -> list[Problem]:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate({"location": "/x", **given})
    return problems_of(caught.value.errors(), Whole, **words)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"locaton": 1}, ["options.locaton: lakes have no such option; did you mean 'location'?"]),
        ({"zzz": 1}, ["options.zzz: lakes have no such option"]),
        ({"location": "x"}, ["options.location: write a path from the root"]),
        ({"location": None}, ["options.location: a text is expected: put quotes around what looks like a number or a date"]),
        (
            {"parts": [{"after": 1}, {"aftr": 1}]},
            ["options.parts.1.aftr: there is no such key; did you mean 'after'?"],
        ),
        (
            {"parts": [{"after": 1}, {"zzz": 1}]},
            ["options.parts.1.after: this key is required", "options.parts.1.zzz: there is no such key"],
        ),
        (
            {"named": {"a": {"after": 1, "aftr": 1}}},
            ["options.named.a.aftr: there is no such key; did you mean 'after'?"],
        ),
        ({"parts": [{"after": "many"}]},
            ["options.parts.0.after: a whole number is expected"]),
    ],
)  # fmt: skip
def test_a_problem_is_a_field_and_a_sentence(given: dict[str, Any], said: list[str]) -> None:
    assert [one.sentence("options") for one in problems(given, unknown="lakes have no such option")] == said


def test_what_is_missing_is_said_in_the_words_of_its_owner() -> None:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate({})
    assert problems_of(caught.value.errors(), Whole, required="this option is required") == [
        Problem(("location",), "this option is required")
    ]


def test_the_whole_has_no_field() -> None:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate(5)
    (one,) = problems_of(caught.value.errors(), Whole)
    assert one.sentence() == one.why
    assert one.sentence("options") == f"options: {one.why}"


def test_each_problem_is_said_once_and_shows_no_value() -> None:
    found = problems({"parts": [{"after": "sEcret"}, {"after": "sEcret"}], "either": "sEcret"})
    assert len(found) == len(set(found))
    assert "sEcret" not in str(found)


def test_bytes_of_a_name_that_no_text_holds_are_escaped() -> None:
    assert Problem(("\udcff",), "there is no such key").sentence() == "\\udcff: there is no such key"
