"""The one error tree: what its module draws is what it defines."""

from __future__ import annotations

import inspect
import re

import pytest

from sluice import errors
from sluice.model.alert_rule import AlertRule
from tests.support.documents.errors_page import COMMAND, PAGE, page

_BRANCH = re.compile(r"^    ((?:[│ ] {3})*)(?:├── |└── )?(\w+)(?:  .*)?$")


def test_the_drawing_equals_the_classes() -> None:
    drawn: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0].splitlines():
        match = _BRANCH.match(line)
        assert match, f"not a branch: {line}"
        depth = len(match[1]) // 4 + ("── " in line)
        assert depth <= len(above), f"{match[2]} hangs in the air"
        above[depth:] = [match[2]]
        assert match[2] not in drawn
        drawn[match[2]] = above[depth - 1] if depth else None
    defined = {
        name: found.__base__.__name__ if found is not errors.SluiceError else None
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, errors.SluiceError) and found.__module__ == errors.__name__
    }
    assert drawn == defined


def test_a_branch_says_if_the_same_call_may_succeed_later() -> None:
    for _, found in inspect.getmembers(errors, inspect.isclass):
        if issubclass(found, errors.SluiceError) and found is not errors.SluiceError:
            assert issubclass(found, errors.RetryableError if found.retryable else errors.TerminalError)


def test_the_page_of_errors_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"`{COMMAND}` writes docs/errors.md"


def test_every_error_and_alert_has_a_name_of_its_own() -> None:
    names = [
        *(kind.public_name for kind in errors.classes()),
        errors.UNFORESEEN,
        *(rule.public_name for rule in AlertRule),
    ]
    assert len(set(names)) == len(names)
    assert re.findall(r"^## (SLUICE-[A-Z-]+[A-Z])$", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == names
    assert errors.LogPurged.public_name == "SLUICE-LOG-PURGED"


@pytest.mark.parametrize("kind", [*errors.classes()], ids=lambda kind: kind.__name__)
def test_every_error_says_what_happened_and_what_to_do(kind: type[errors.SluiceError]) -> None:
    assert {"What", "To do"} <= errors.explanation(kind).keys()
    error = kind("it stopped", where="here", hint="go on")
    assert str(error) == f"it stopped [{kind.public_name} at here] -> go on"
    assert str(kind(str(error))) == str(error), "an error that passes the text of another on"
    assert str(kind("two problems:\n  a\n  b")) == f"two problems [{kind.public_name}]:\n  a\n  b"


def test_a_class_outside_of_the_tree_has_the_name_of_its_parent() -> None:
    class Inner(errors.LostPosition):
        """A room's own."""

    assert Inner.public_name == errors.public_name_of(Inner("gone")) == "SLUICE-LOST-POSITION"
    assert errors.public_name_of(ValueError("no")) == errors.UNFORESEEN
