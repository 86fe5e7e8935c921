"""Access control: readers, and what each may read."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from sluice.config import patterns
from sluice.config.readers import hashed, load_readers
from sluice.errors import AccessDenied, ConfigError, StorageUnavailable
from sluice.model.tables import TableId

_log = structlog.get_logger()
_SCHEME = "bearer "


@dataclass(frozen=True)
class Reader:
    """A reader of the service.

    Attributes:
        name: for messages and the log. pipelines: regular expressions on schema.table, anchored, by pipeline; None: all
            of everything.
    """

    name: str
    pipelines: Mapping[str, tuple[str, ...]] | None = None

    def may_see(self, pipeline: str) -> bool:
        """Return True if the reader may read something of the pipeline."""
        return self.pipelines is None or pipeline in self.pipelines

    def may_read(self, pipeline: str, table: TableId) -> bool:
        """Return True if the reader may read rows of the table, under the name they are read by."""
        if self.pipelines is None:
            return True
        return any(patterns.fullmatch(pattern, str(table)) for pattern in self.pipelines.get(pipeline, ()))


ANYBODY = Reader("anybody")
"""The reader of a service without tokens: whoever can connect."""


class Readers:
    """The readers of a file, read again when it changes.

    Any thread may use it. Raises ConfigError for a file that is wrong at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._version: tuple[int, int] | None = None
        self._known: list[tuple[str, Reader]] = []
        self._read()

    def known(self, authorization: str | None) -> Reader:
        """Return the reader who sends this header.

        Raises AccessDenied, and StorageUnavailable while the file cannot be read: no one may read then.
        """
        try:
            self._read()
        except (ConfigError, OSError) as error:
            _log.exception("readers_read_failed", file=str(self._path))
            raise StorageUnavailable("the service cannot read its list of readers; its log says why") from error
        header = authorization or ""
        digest = hashed(header[len(_SCHEME) :].strip()) if header[: len(_SCHEME)].lower() == _SCHEME else ""
        sender = None
        for known_digest, reader in self._known:  # all of them: the time does not tell which one it is
            if hmac.compare_digest(known_digest, digest):
                sender = reader
        if sender is None:
            error_of = AccessDenied(
                "the token is missing or not known", hint="send the header authorization: Bearer TOKEN"
            )
            error_of.known = False
            raise error_of
        return sender

    def _read(self) -> None:
        with self._lock:
            seen_stat = self._path.stat() if self._path.exists() else None
            version = (seen_stat.st_mtime_ns, seen_stat.st_ino) if seen_stat else None
            if version is None or version != self._version:
                self._version = None
                config = load_readers(self._path)
                self._known = [(reader.token_sha256, Reader(reader.name, reader.may_read)) for reader in config.readers]
                self._version = version
