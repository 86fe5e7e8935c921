"""The one error tree: what its module draws is what it defines."""

from __future__ import annotations

import inspect
import re

from sluice import errors

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
