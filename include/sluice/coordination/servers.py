"""Services that readers can read at: each says where it is, for as long as its session lives."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sluice.coordination.layout import SERVER, server, servers
from sluice.coordination.port import Create, Put, Remove, Step, Znodes, committed


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A service: ``address`` that clients reach it by, ``pipelines`` that it reads."""

    address: str
    pipelines: tuple[str, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ServerEntry:
        """Read an entry from its node."""
        return cls(str(data["address"]), tuple(map(str, data["pipelines"])))


class Servers:
    """The subscription services of all pipelines below ``root``."""

    def __init__(self, znodes: Znodes, root: str) -> None:
        self._z = znodes
        self._root = root

    def keep(self, name: str, entry: ServerEntry) -> None:
        """Have the service ``name`` known as this, until the session ends."""
        path, content = server(self._root, name), SERVER.encode(asdict(entry))
        node = self._z.get(path)
        if node is not None and node.data == content:
            return
        if node is None:
            self._z.ensure(servers(self._root))
        step: Step = Put(path, content, node.version) if node else Create(path, content, ephemeral=True)
        committed(self._z, step)  # where it is not: the next call sees why

    def forget(self, name: str) -> None:
        """Remove the service ``name``, which takes no readers any more."""
        committed(self._z, Remove(server(self._root, name)))

    def all(self) -> list[ServerEntry]:
        """Return the services whose sessions live: one that was killed is among them until its session times out."""
        paths = (server(self._root, name) for name in self._z.children(servers(self._root)))
        entries = (SERVER.read(self._z, path, lambda data, _: ServerEntry.from_json(data)) for path in paths)
        return [entry for entry in entries if entry is not None]
