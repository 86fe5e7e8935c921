"""Alerts: of many processes that see that one holds, one alerts people."""

from __future__ import annotations

import time

from sluice.coordination.layout import ALERT, Layout
from sluice.coordination.port import Put, Znodes, committed

OFF = "off:"
"""Prefix of the keys under which it is recorded that an alert is switched off."""


def is_switch(key: str) -> bool:
    """Return True for a key that is no alert, but says that one is switched off."""
    return key.startswith(OFF)


class Alerts:
    """The alerts of one pipeline: of its targets by name, of anything else by a key with a colon."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._at = layout

    def since(self, target: str) -> str | None:
        """Return since when the lag of ``target`` is above its limit (ISO 8601), or None."""
        return ALERT.read(self._z, self._at.alert(target), lambda data, _: str(data["since"]))

    def all(self) -> dict[str, str]:
        """Return key -> since when (ISO 8601), of all alerts that are raised."""
        raised = {name: self.since(name) for name in self._z.children(self._at.alerts)}
        return {name: since for name, since in raised.items() if since is not None}

    def raise_(self, target: str, lag_ms: int) -> bool:
        """Note that the lag is too large. True for the one caller that notes it first, and so tells people."""
        path = self._at.alert(target)
        self._z.ensure(path)
        node = self._z.get(path)
        if node is None or node.data:
            return False
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return committed(self._z, Put(path, ALERT.encode({"since": since, "lag_ms": lag_ms}), node.version))

    def clear(self, target: str) -> bool:
        """Clear the alert. Return True to the one caller that clears it."""
        path = self._at.alert(target)
        node = self._z.get(path)
        return bool(node and node.data and committed(self._z, Put(path, b"", node.version)))
