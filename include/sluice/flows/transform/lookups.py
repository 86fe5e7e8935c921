"""Dimension tables of rules: read by the worker that needs them, kept by its process, read again when they are older
than ``max_age``.

Within one table of one work unit a lookup never changes. A copy that cannot be refreshed is not used: the unit fails
and is tried again.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from pyarrow import fs

from sluice.config.connections import ConnectionResolver
from sluice.config.engine import LookupConfig
from sluice.errors import ConfigError, RuleError
from sluice.rules.lookups import Lookup
from sluice.sources import query_rows

_kept: dict[str, tuple[float, Lookup]] = {}
_lock = threading.Lock()
_LIMIT = 64


@dataclass(frozen=True)
class LookupReader:
    """Finds the lookups of one rule. Picklable if its resolver is.

    Attributes:
        rule, engine: name and ``engine.yaml:line``, for errors.
        folder: file names are relative to it.
    """

    rule: str
    engine: str
    folder: str
    resolver: ConnectionResolver
    clock: Callable[[], float] = time.monotonic

    def __call__(self, name: str, config: LookupConfig) -> Lookup:
        """Return the lookup, at most ``max_age`` old. Raises RuleError, ConfigError, or SourceUnavailable (retried)."""
        identity = hashlib.sha256(f"{self.folder}|{config.model_dump_json()}".encode()).hexdigest()
        with _lock:
            cached = _kept.get(identity)
            if cached is not None and self.clock() - cached[0] <= config.max_age.total_seconds():
                return cached[1]
            begun = self.clock()
            table = self._from_file(name, config) if config.file else self._from_query(name, config)
            self._require(name, config, table)
            if len(_kept) >= _LIMIT:
                _kept.clear()
            lookup = Lookup(table, config.key)
            _kept[identity] = (begun, lookup)
            return lookup

    def _from_file(self, name: str, config: LookupConfig) -> pa.Table:
        assert config.file is not None
        place = config.file if "://" in config.file or config.file.startswith("/") else f"{self.folder}/{config.file}"
        try:
            filesystem, path = fs.FileSystem.from_uri(place) if "://" in place else (fs.LocalFileSystem(), place)
            with filesystem.open_input_file(path) as source:
                if source.size() > config.max_bytes:
                    raise self._too_large(name, f"{source.size():,} bytes", "max_bytes")
                if place.endswith(".parquet"):
                    return pq.read_table(source)
                if place.endswith((".json", ".jsonl", ".ndjson")):
                    return pyarrow.json.read_json(source)
                return pyarrow.csv.read_csv(source)
        except FileNotFoundError as error:
            raise ConfigError(
                f"lookup {name!r} of rule {self.rule!r}: there is no file {place}", where=self.engine
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise RuleError(
                f"lookup {name!r} of rule {self.rule!r} cannot be read from {place}: {str(error)[:200]}",
                where=self.engine,
            ) from error

    def _from_query(self, name: str, config: LookupConfig) -> pa.Table:
        assert config.connection is not None
        assert config.query is not None
        endpoint = self.resolver(config.connection)
        doing = f"lookup {name!r} of rule {self.rule!r}"
        names, rows = query_rows(endpoint, config.query, config.max_rows + 1, doing=doing, where=self.engine)
        if len(rows) > config.max_rows:
            raise self._too_large(name, f"more than {config.max_rows:,} rows", "max_rows")
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        return pa.table([pa.array(column) for column in columns], names=names)

    def _require(self, name: str, config: LookupConfig, table: pa.Table) -> None:
        if table.num_rows > config.max_rows:
            raise self._too_large(name, f"{table.num_rows:,} rows", "max_rows")
        if table.nbytes > config.max_bytes:
            raise self._too_large(name, f"{table.nbytes:,} bytes", "max_bytes")
        missing = [column for column in config.key if column not in table.schema.names]
        if missing:
            raise ConfigError(
                f"lookup {name!r} of rule {self.rule!r} has no column {missing[0]!r}",
                where=self.engine,
                hint=f"it has {', '.join(table.schema.names)}",
            )

    def _too_large(self, name: str, what: str, limit: str) -> RuleError:
        return RuleError(
            f"lookup {name!r} of rule {self.rule!r} has {what}; its {limit} is less",
            where=self.engine,
            hint=f"select fewer rows, or raise {limit}: every worker keeps it in memory",
        )
