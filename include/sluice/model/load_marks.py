"""Origin markers of load transactions, by which a capture recognises changes that Sluice itself wrote at its source.

A load transaction inserts a token into the marking table before its first row and deletes it after its last one, in the
same transaction as the rows. So the log has the token around exactly these rows, in whatever way the transaction was
written, and a transaction that was rolled back left neither. The table is always empty: nothing is locked between
transactions, and there is nothing in it that could be copied.

A token says who loads and ends with a seal (HMAC-SHA256) that is made with a secret key: one that somebody wrote by
hand is none. Any role may write a token into a log of PostgreSQL, and a token that is believed keeps changes from being
captured. So the key is that of the channel's file, or a random one in ZooKeeper. Only a channel that began under a
version without secret keys has a public one (:func:`public_key`), until its file has a key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

TABLE = "_sluice_origin"
"""The marking table, in the schema of the acknowledgements."""

TOKEN_BYTES = 400
COLUMN = f"token VARCHAR({TOKEN_BYTES}) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY"
"""The key is the token, as any row image has the key's columns."""

_VERSION, _NUMBERED = "1", "2"
"""Without and with the numbers of batches (:class:`Held`)."""
_SEAL_DIGITS = 32
_COMMENT = re.compile(r"/\* sluice:([A-Za-z0-9_.]{1,400}) \*/\s*$")


@dataclass(frozen=True, slots=True)
class Held:
    """The batches of each other's changes that the sites of a channel hold.

    Attributes:
        loaded: the last batch of the pipeline that its target holds in whole, from the end of the marked transaction
            on.
        seen: the last batch of the partner that the pipeline's source held in whole before the first of the loaded
            changes was made.
    """

    loaded: int
    seen: int


@dataclass(frozen=True, slots=True)
class Token:
    """The contents of a mark.

    ``channel``, ``name``: "" where there is none; ``number``: stored as ``_origin`` of the changes; ``held`` None: not
    said.
    """

    channel: str
    pipeline: str
    name: str
    held: Held | None = None

    @property
    def number(self) -> int:
        """The number that marks changes that ``pipeline`` loaded in a segment."""
        return origin_number(self.pipeline)


def public_key(channel: str) -> str:
    """Return the key that versions without secret keys used if the channel's file had none; ``""``: of no channel."""
    return f"channel {channel}" if channel else "no channel"


def origin_number(pipeline: str) -> int:
    """Return the ``_origin`` of changes that a pipeline loaded: 32 bits of its name."""
    return zlib.crc32(pipeline.encode())


@dataclass(frozen=True, slots=True)
class LoadMark:
    """The mark that a pipeline puts on its loads. Picklable: work units carry it.

    Attributes:
        channel: of the pipeline, "" for one without. name: its named mark, or "". key: of the channel; the public one
            until the secret is read from ZooKeeper.
        numbered: marks say how far the sites have each other's changes. seen: see :class:`Held`.
        gives_way: a row that holds a unique value that a loaded one needs is removed: it comes back, as all rows do
            where a channel loops back.
    """

    pipeline: str
    channel: str
    name: str
    key: str = field(repr=False)
    numbered: bool = False
    seen: int = 0
    gives_way: bool = False

    def token(self, nonce: str, loaded: int = 0) -> str:
        """Return a new token.

        ``nonce``: letters and digits that no other transaction has; ``loaded``: see :class:`Held`.
        """
        text = f"{self.channel}.{self.pipeline}.{self.name}.{nonce}"
        text = f"{_NUMBERED}.{text}.{loaded}.{self.seen}" if self.numbered else f"{_VERSION}.{text}"
        return f"{text}.{_seal(text, self.key)}"


@dataclass(frozen=True, slots=True)
class MarkRules:
    """The treatment of marked changes by a capture.

    Those that are not dropped are captured, with the loading pipeline's number as their origin.

    Attributes:
        keys: of each channel whose marks are understood; "": of pipelines without a channel; public ones until
            secrets are read from ZooKeeper. former: keys from before a change, which are understood, too.
        channel: of the pipeline, "" for one without; None: marks of every channel count as those of its own.
        dropped: pipelines of the same channel that write to this source what this pipeline sent: their changes never go
            back.
        ignored: named marks whose changes are not wanted.
        sends_back: what this pipeline captures was loaded by its partner, too: it can be loaded once more only into
            tables with a key.
        partner: the other pipeline of the channel, "" if there is none.
        repairs: of what the partner loaded, only what is in conflict is sent back (:mod:`sluice.merge.conflicts`).
    """

    keys: Mapping[str, str] = field(repr=False)
    dropped: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    sends_back: bool = False
    partner: str = ""
    repairs: bool = False
    former: Mapping[str, str] = field(default_factory=dict, repr=False)
    channel: str | None = None

    @property
    def two_way(self) -> bool:
        """The source is a site of the pipeline's channel: Sluice writes to it, too."""
        return self.sends_back or bool(self.dropped)

    def read(self, text: str) -> Token | None:
        """Parse a token; None if Sluice did not make it with a known key."""
        content, _, seal = text.rpartition(".")
        parts = content.split(".")
        if (len(parts), parts[0]) not in {(5, _VERSION), (7, _NUMBERED)} or parts[1] not in self.keys:
            return None
        keys = (self.keys[parts[1]], self.former.get(parts[1]))
        mark = seal.encode(errors="surrogatepass")
        if not any(key and hmac.compare_digest(mark, _seal(content, key).encode()) for key in keys):
            return None
        numbers = Held(int(parts[5]), int(parts[6])) if parts[0] == _NUMBERED else None
        return Token(parts[1], parts[2], parts[3], numbers)

    def drops(self, token: Token) -> bool:
        """Return True if changes with this mark are not captured."""
        return (self.is_own(token) and token.pipeline in self.dropped) or token.name in self.ignored

    def is_own(self, token: Token) -> bool:
        """Return True for a mark of the pipeline's own channel; the key of another proves nothing about a pipeline."""
        return self.channel is None or token.channel == self.channel

    def of_statement(self, sql: str) -> Token | None:
        """Return the mark at the end of a statement, see :func:`marked_statement`."""
        match = _COMMENT.search(sql)
        return self.read(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class PartnerLoads:
    """Loads by the channel's other pipeline in a stretch of a source's log; None: nothing is known.

    Attributes:
        before: the last batch that the source held in whole before the first captured change. after: the same at the
            end of the stretch.
        saw: the least ``seen`` (:class:`Held`) of the loads that are captured; None: none is.
    """

    before: int | None = None
    after: int | None = None
    saw: int | None = None

    def met(self, token: Token, rules: MarkRules, *, captured: bool) -> PartnerLoads:
        """Add one more mark.

        ``captured``: changes before it are captured. A mark without numbers is that of a load that has seen nothing.
        """
        if token.pipeline != rules.partner or not rules.is_own(token):
            return self
        numbers = token.held
        before, after, saw = self.before, self.after, self.saw
        if numbers is not None:
            after = numbers.loaded
            before = before if captured else numbers.loaded
        if not rules.drops(token):
            seen_batch = numbers.seen if numbers is not None else 0
            saw = seen_batch if saw is None else min(saw, seen_batch)
        return PartnerLoads(before, after, saw)


def marked_statement(sql: str, token: str) -> str:
    """Append its mark to a statement that changes definitions.

    Such a statement has no transaction: a comment in its own text is logged with it, or not at all.
    """
    return f"{sql} /* sluice:{token} */"


def _seal(text: str, key: str) -> str:
    return hmac.new(key.encode(), text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()[:_SEAL_DIGITS]
