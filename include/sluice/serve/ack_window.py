"""The batches of a subscription that were sent and are not acknowledged yet: values only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from sluice.errors import ConfigError


class AckWindow:
    """The window of one session.

    Attributes:
        acknowledged: everything up to this batch is; batches that nothing is sent of count with the one before them.
        sent: the last batch that was sent, or passed over.
    """

    def __init__(self, size: int, acknowledged: int, sent: int | None = None, outstanding: Iterable[int] = ()) -> None:
        """Start a window. ``sent``, ``outstanding``: what an earlier session of the same client had sent, ascending."""
        self.size = size
        self.acknowledged = acknowledged
        self.sent = acknowledged if sent is None else sent
        self._outstanding = deque(outstanding)

    @property
    def is_full(self) -> bool:
        """Nothing more is sent before something is acknowledged."""
        return len(self._outstanding) >= self.size

    def send(self, number: int) -> None:
        """Note that batch ``number`` was sent."""
        self.sent = number
        self._outstanding.append(number)

    def pass_over(self, number: int) -> None:
        """Note that nothing is sent of batch ``number``."""
        self.sent = number
        self._settle()

    def acknowledge(self, number: int) -> None:
        """Acknowledge everything up to ``number``; a repeat is harmless.

        Raises ConfigError for a batch that was not sent.
        """
        if number > self.sent:
            raise ConfigError(f"batch {number} cannot be acknowledged: the last one that was sent is {self.sent}")
        while self._outstanding and self._outstanding[0] <= number:
            self._outstanding.popleft()
        self._settle()

    def roll_back(self) -> None:
        """Send again what was not acknowledged."""
        self.sent = self.acknowledged
        self._outstanding.clear()

    def _settle(self) -> None:
        self.acknowledged = self._outstanding[0] - 1 if self._outstanding else self.sent
