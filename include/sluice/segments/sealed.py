"""The checksum of a manifest: its last field, ``crc32``, of the text without that field.

Data files have theirs in the manifest that lists them. A manifest has its own, so that a flipped bit in an offset or a
GTID is found when it is read, and not taken for what was written. Manifests of older versions have none.
"""

from __future__ import annotations

import re
import zlib

_END = "\n}\n"
_SEAL = re.compile(rb',\n "crc32": "([0-9a-f]{8})"\n\}\n\Z')


def sealed(text: str) -> str:
    """Return the JSON object ``text`` (indented by 1, with a newline at its end) with its checksum."""
    if not text.endswith(_END):
        raise ValueError("a manifest is a JSON object with a field a line")
    return f'{text[: -len(_END)]},\n "crc32": "{zlib.crc32(text.encode()):08x}"{_END}'


def unsealed(text: str | bytes) -> bytes:
    """Return the text that was given to :func:`sealed`; one without a checksum as it is.

    Raises ValueError if the checksum does not fit.
    """
    data = text.encode() if isinstance(text, str) else text
    seal = _SEAL.search(data)
    if seal is None:
        return data
    written = data[: seal.start()] + _END.encode()
    if zlib.crc32(written) != int(seal[1], 16):
        raise ValueError("its checksum is not that of its text, which was changed since it was written")
    return written
