"""Names of files as rows have them.

A row is data that somebody else wrote: a name must not lead out of the location that the pipeline file names.
"""

from __future__ import annotations

import re
import unicodedata

from sluice.row_files.port import FileRefused

OWN_FOLDER = ".sluice"
"""Folder below ``to:`` that holds receipts and temporary files; rows cannot name what is in it."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MOST_BYTES, _MOST_PART_BYTES = 1024, 255
"""Bytes of a key at S3, and of a part of a path on most file systems."""

_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})


def file_name(value: object) -> str:
    """Return the value of a row's column as a name below a location. Raises FileRefused if it could lead anywhere else.

    Names are relative, with ``/`` between their parts, and are taken as they are: nothing is decoded or normalised.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise FileRefused("its name is not UTF-8") from None
    if not isinstance(value, str):
        raise FileRefused(f"its name is no text but {type(value).__name__}")
    if any(unicodedata.category(character) in _UNPRINTABLE for character in value):
        raise FileRefused("its name has a control character")
    if value.startswith("/"):
        raise FileRefused("its name is an absolute path")
    if _SCHEME.match(value):
        raise FileRefused("its name begins with a scheme")
    if "\\" in value:
        raise FileRefused("its name has a backslash")
    parts = value.split("/")
    if any(part in {".", ".."} for part in parts):
        raise FileRefused("its name has . or .. as a part")
    if not all(parts):
        raise FileRefused("its name has an empty part")
    if parts[0].casefold() == OWN_FOLDER:
        raise FileRefused(f"its name begins with {OWN_FOLDER}, which holds receipts")
    if len(value.encode()) > _MOST_BYTES or any(len(part.encode()) > _MOST_PART_BYTES for part in parts):
        raise FileRefused(f"its name is longer than {_MOST_BYTES} bytes, or a part of it than {_MOST_PART_BYTES}")
    return value
