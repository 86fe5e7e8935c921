"""Borders between ranges of a key: about equally many rows each, however the row groups start."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.model.key_ranges import PER_GROUP, borders, samples


def test_files_whose_groups_start_at_nearly_the_same_keys_are_cut_into_even_ranges() -> None:
    """Quantiles of the starts themselves would be three borders inside of each cluster, and none between them."""
    starts = [[group * 100_000 + file for group in range(11)] for file in range(64)]
    found = samples(starts)
    assert len(found) == 64 * 10 * PER_GROUP
    edges = [0, *borders(found, len(found) // 40), 1_000_000]
    assert len(edges) == 41
    widths = np.diff(edges)
    assert widths.max() < 2 * widths.min()


def test_samples_lie_between_the_bounds() -> None:
    starts = [[0, 100, 200, 300], [50, 250]]
    assert samples(starts, 100, 200).min() > 100
    assert samples(starts, 100, 200).max() < 200
    assert list(samples(starts, 300, 400)) == []


@pytest.mark.parametrize(
    "starts", [[[-(2**63), 2**63 - 1]], [[-(2**63), 0, 2**63 - 1], [7, 7]], [[2**63 - 2, 2**63 - 1]]]
)
def test_borders_ascend_up_to_the_ends_of_the_numbers(starts: list[list[int]]) -> None:
    cut = borders(samples(starts), 4)
    assert cut == sorted(set(cut))
    assert all(min(map(min, starts)) < key <= max(map(max, starts)) for key in cut)


def test_rows_of_one_key_and_no_rows_have_no_border() -> None:
    assert borders(samples([[5, 5, 5], [5, 5]]), 4) == []
    assert borders(samples([[], ()]), 4) == []
