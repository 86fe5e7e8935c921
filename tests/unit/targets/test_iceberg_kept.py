"""What a process keeps of the files of Iceberg tables: no more than there is room, and keys that are found again."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.targets.iceberg import kept
from sluice.targets.iceberg.kept import FileKeys, Kept, MostRecent


def test_files_are_kept_while_there_is_room_and_idle_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is larger than the room keeps the files that came first, batch after batch."""
    now = [0.0]
    monkeypatch.setattr(kept.time, "monotonic", lambda: now[0])
    held = Kept(most_bytes=100)
    for _ in range(3):
        for name in "abc":
            if held.get(name) is None:
                held.put(name, name.upper(), 40)
        now[0] += 300
    assert [held.get(name) for name in "abc"] == ["A", "B", None]
    now[0] += 601
    assert held.get("b") == "B"
    held.put("c", "C", 40)
    assert [held.get(name) for name in "abc"] == [None, "B", "C"]
    held.put("large", "L", 101)
    assert held.get("large") is None
    held.put("large", "L", 20)
    assert [held.get(name) for name in ("c", "large")] == ["C", "L"]
    held.begin()
    assert held.get("c") is None


def test_the_most_recently_used_values_stay() -> None:
    recent = MostRecent[str](100)
    for name in "abc":
        recent.put(name, name.upper(), 40)
        assert recent.get("a") in {"A", None}
    assert [recent.get(name) for name in "abc"] == ["A", None, "C"]
    recent.put("large", "L", 500)
    assert [recent.get(name) for name in ("a", "c", "large")] == [None, None, "L"], "the newest one stays"
    assert (recent.size("large"), recent.size("a")) == (500, 0)


@pytest.mark.parametrize(
    "keys",
    [[5], [-3, 0, 4_000_000_000], [-(2**63), 0, 2**63 - 1], [7, 3, 9], [2**40, 2**40 + 1]],
    ids=["one", "narrow", "wide", "mixed", "far"],
)
def test_keys_of_a_file_in_the_narrowest_type(keys: list[int]) -> None:
    made = FileKeys.of(np.array(keys, np.int64))
    assert (made.least, made.most) == (min(keys), max(keys))
    assert made.in_order == (sorted(keys) == keys)
    assert made.offsets.dtype == (np.uint32 if max(keys) - min(keys) < 2**32 else np.int64)
    assert (made.offsets_of(np.array(keys, np.int64)) == made.offsets).all()
