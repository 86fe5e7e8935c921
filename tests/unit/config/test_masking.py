"""What a server says, without the values in it."""

from __future__ import annotations

import pytest

from sluice.config.masking import without_values


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Data too long for column 'name' at row 1", "Data too long for column 'name' at row 1"),
        ("Data too long for column 'name' at row 1 (error 1406)", "Data too long for column 'name' at row 1 (error "
        "1406)"),
        (
            "Incorrect datetime value: 'it's a secret' for column 'at' at row 7 (error 1292)",
            "Incorrect datetime value: '***' for column 'at' at row 7 (error 1292)",
        ),
        ("Duplicate entry 'a@x' for key 'customers.email' (error 1062)", "Duplicate entry '***' for key "
        "'customers.email' (error 1062)"),
        ("Incorrect value: 'a for key 'b' c' at row 1 (error 1)", "Incorrect value: '***' at row 1 (error 1)"),
    ],
)  # fmt: skip
def test_values_go_and_the_columns_name_stays(said: str, shown: str) -> None:
    assert without_values(said) == shown
