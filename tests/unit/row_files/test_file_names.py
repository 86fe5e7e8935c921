"""Names that rows give: what is looked up below a location, and what could lead out of it."""

from __future__ import annotations

import pytest

from sluice.row_files.file_name import file_name
from sluice.row_files.port import FileRefused


@pytest.mark.parametrize(
    "name",
    [
        "a.png",
        "products/42/a b.png",
        "..a/b..",
        "a...b",
        "ünï/日本.txt",
        "%2e%2e/x",
        "a?b#c&d",
        "~root/x",
        "a/b:c",
        "1:x",
    ],
)
def test_a_relative_name_is_taken_as_it_is(name: str) -> None:
    assert file_name(name) == name
    assert file_name(name.encode()) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/etc/passwd", "absolute"),
        ("//server/share", "absolute"),
        ("..", r"\.\."),
        ("../secret", r"\.\."),
        ("a/../../secret", r"\.\."),
        ("a/..", r"\.\."),
        ("./a", r"\."),
        ("a//b", "empty part"),
        ("a/", "empty part"),
        ("file:///etc/passwd", "scheme"),
        ("s3://other/x", "scheme"),
        ("http:x", "scheme"),
        ("a:b", "scheme"),
        ("C:\\boot.ini", "scheme"),
        ("..\\secret", "backslash"),
        ("a\nb", "control"),
        ("a\0b", "control"),
        ("a\x7fb", "control"),
        ("a\u2028b", "control"),
        ("a\ud800b", "control"),
        (".sluice/files/x", "receipts"),
        (".SLUICE/files/x", "receipts"),
        ("a" * 256, "longer"),
        ("/".join(["a" * 200] * 6), "longer"),
        (b"\xff\xfe", "UTF-8"),
        (17, "no text"),
    ],
)
def test_a_name_that_could_lead_elsewhere_is_refused(name: object, why: str) -> None:
    with pytest.raises(FileRefused, match=why) as refused:
        file_name(name)
    assert str(name)[:60] not in str(refused.value) or len(str(name)) < 4, "a masked value could be in it"
