"""The two pipelines of a channel stop together: what one of them fails at, and whether the other one may go on.

Whoever works on a pipeline notes here what it fails at, and removes the note when it works again. So a note is as old
as the failure, by ZooKeeper's own time. A pipeline whose partner has failed for longer than the channel's ``grace`` may
not work, whoever runs it; one that fails itself may always try: otherwise two that failed at the same time would wait
for each other.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sluice.coordination.failures import NO_FAILURE
from sluice.coordination.layout import MARK_KEY, MEMBERSHIP, SIDE, Layout, mark_key
from sluice.coordination.port import Conflict, Create, Put, Remove, Znodes, committed
from sluice.errors import ConfigError, SluiceError

_MOST_WORDS = 300


@dataclass(frozen=True, slots=True)
class ChannelMembership:
    """A pipeline's membership in ``channel``.

    The other pipeline is ``partner``; it may fail for ``grace_s`` before this stops.
    """

    channel: str
    partner: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class SideFailure:
    """A failure of a pipeline. ``part``: drain, merge or load-{target}; ``since_ms``: milliseconds since 1970."""

    pipeline: str
    part: str
    why: str
    since_ms: int

    @property
    def since(self) -> str:
        """ISO 8601."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since_ms / 1000))


class ChannelSide:
    """One pipeline's side of its channel."""

    def __init__(self, znodes: Znodes, layout: Layout, membership: ChannelMembership) -> None:
        self._z, self._layout, self._membership = znodes, layout, membership
        self.channel, self.partner = membership.channel, membership.partner
        self.folder = layout.channel(membership.channel)

    def failures(self) -> list[SideFailure]:
        """Return the failures of both pipelines, oldest first."""
        reported = []
        for name in self._z.children(self.folder):
            path = f"{self.folder}/{name}"
            node = self._z.get(path)
            if node is not None and node.data:
                pipeline, _, part = name.partition(".")
                why = SIDE.parse(path, node.data, lambda data: str(data["why"]))
                reported.append(SideFailure(pipeline, part, why, node.modified_ms))
        return sorted(reported, key=lambda failure: failure.since_ms)

    def stops(self) -> SideFailure | None:
        """Return the partner's failure that stops this pipeline; None if it may work."""
        failures = self.failures()
        if any(failure.pipeline == self._layout.pipeline for failure in failures):
            return None
        limit = time.time() * 1000 - self._membership.grace_s * 1000
        return next((f for f in failures if f.pipeline == self.partner and f.since_ms <= limit), None)

    @contextmanager
    def reporting(self, part: str) -> Iterator[None]:
        """Note what goes wrong inside; success clears the note."""
        try:
            yield
        except NO_FAILURE:
            raise
        except SluiceError as error:
            self._note(part, error.message)
            raise
        self._clear([self._layout.side(self.channel, part)])

    def forget(self) -> None:
        """Clear all notes of both pipelines: a person says that they may work."""
        self._clear([f"{self.folder}/{name}" for name in self._z.children(self.folder)])

    def _note(self, part: str, why: str) -> None:
        """Note a failure. The first note stays, and with it the time since when."""
        self._z.ensure(self.folder)
        committed(self._z, Create(self._layout.side(self.channel, part), SIDE.encode({"why": why[:_MOST_WORDS]})))

    def _clear(self, paths: list[str]) -> None:
        for path in paths:
            if self._z.get(path) is not None:
                committed(self._z, Remove(path))


def require_channel(znodes: Znodes, layout: Layout, channel: str) -> None:
    """Note that the pipeline works in ``channel``; "": in none.

    Raises ConfigError: it worked in one, and now it would work without: what it loads would not be marked, and come
    back.
    """
    node = znodes.get(layout.membership)
    recorded = MEMBERSHIP.parse(layout.membership, node.data, lambda data: str(data["channel"])) if node else ""
    if recorded == channel:
        return
    if not channel:
        raise ConfigError(
            f"{layout.pipeline} works in channel {recorded}, and no channel file here names it: what it loads would "
            "come back",
            where=layout.membership,
            hint="is include/channels (SLUICE_CHANNELS) here? If it left the channel: `sluice channel leave "
            f"{layout.pipeline}`",
        )
    content = MEMBERSHIP.encode({"channel": channel})
    committed(znodes, Put(layout.membership, content, node.version) if node else Create(layout.membership, content))


def read_mark_key(znodes: Znodes, root: str, channel: str) -> str:
    """Return the key that seals the origin markers of a channel, "" if it has none in ZooKeeper."""
    path = mark_key(root, channel)
    return MARK_KEY.read(znodes, path, lambda data, _: str(data["key"])) or ""


def begin_mark_key(znodes: Znodes, root: str, channel: str, members: Iterable[str]) -> None:
    """Make the key of a channel of which none of the ``members`` has begun.

    Once one has begun, a log may have markers that an older version sealed, and such a version may run the other.
    """
    path = mark_key(root, channel)
    if any(znodes.get(Layout(root, member).cursor) for member in members) or znodes.get(path) is not None:
        return
    znodes.ensure(path.rpartition("/")[0])
    with suppress(Conflict):  # another process was first
        znodes.transact([Create(path, MARK_KEY.encode({"key": secrets.token_hex(32)}))])


def leave_channel(znodes: Znodes, layout: Layout) -> None:
    """Record that the pipeline works without a channel from now on."""
    if znodes.get(layout.membership) is not None:
        committed(znodes, Remove(layout.membership))
