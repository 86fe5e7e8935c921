"""The client library (pyiceberg), the catalog of a target's tables, and the library's errors as Sluice's."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sluice.config.connections import Endpoint, require_own_address
from sluice.config.folders import local_folder
from sluice.errors import ConfigError, LoadError, SluiceError, TargetUnavailable
from sluice.model.client_packages import install_hint
from sluice.targets.lake.format import Raced

Identifier = tuple[str, ...]
"""Namespace and table."""

_MOST_OPEN = 8
"""Open catalogs of a process, at most."""
_ADDRESS = re.compile(r"endpoint|ur[il]|host|proxy")
_SHOWN = frozenset({"type", "uri", "warehouse", "name"})


def library() -> Any:
    """Import ``pyiceberg``. Raises ConfigError if it is not installed."""
    try:
        import pyiceberg.catalog
        import pyiceberg.exceptions  # noqa: F401 - used through the package
    except ImportError as error:
        raise ConfigError(
            "targets of type iceberg need the package pyiceberg, which is not installed",
            hint=install_hint("iceberg"),
        ) from error
    return pyiceberg


class _Catalogs:
    """The catalogs of this process; the least recently used is closed.

    A forked child starts with none: the connections are its parent's.
    """

    def __init__(self) -> None:
        self._parents: Any = None
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """Start with no catalog."""
        self._parents = getattr(self, "_open", None)  # not closed here
        self._open: OrderedDict[tuple[tuple[str, str], ...], Any] = OrderedDict()
        self._lock = threading.Lock()
        self.turn = threading.Lock()

    def of(self, properties: Mapping[str, str]) -> Any:
        """Return the catalog; opens it if it is not open."""
        key = tuple(sorted(properties.items()))
        with self._lock:
            if key not in self._open:
                self._open[key] = _load(properties)
            self._open.move_to_end(key)
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)[1].close()  # a thread that still uses it gets a new connection
            return self._open[key]


_catalogs = _Catalogs()


def _load(properties: Mapping[str, str]) -> Any:
    own = {name: value for name, value in properties.items() if name != "name"}
    catalog = library().catalog.load_catalog(properties.get("name", "sluice"), **own)
    if not hasattr(catalog, "engine"):
        return catalog
    from sluice.targets.iceberg.catalog import KeptCatalog

    cached_catalog = KeptCatalog(catalog.name, **catalog.properties)
    catalog.close()
    return cached_catalog


@dataclass(frozen=True)
class Place:
    """A catalog. ``properties``: as pyiceberg has them; they hold secrets and are never shown. ``said``: for people.

    ``folder``: of the catalog's own file, "" if it is a server's; it is made.
    """

    said: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str = ""

    def catalog(self) -> Any:
        """Return the catalog, opened once per process. Raises ConfigError, TargetUnavailable."""
        library()
        with errors(self, "opening the catalog", ""):
            if self.folder:
                os.makedirs(self.folder, exist_ok=True)
            return _catalogs.of(self.properties)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let only this thread commit inside the context, if the catalog and the tables are files of this machine.

        Such a commit waits for hardly anything but the interpreter: threads that commit at the same time hold each
        other up, and take longer than one. Where a catalog or a store answers over a network, as many threads commit at
        the same time as the target's ``parallelism`` says. Other processes, such as Spark's workers, are not waited
        for.
        """
        catalog_is_file = self.properties.get("uri", "").startswith("sqlite")
        if not (catalog_is_file and local_folder(self.properties.get("warehouse", ""))):
            yield
            return
        with _catalogs.turn:
            yield

    def open(self, identifier: Identifier, doing: str) -> Any:
        """Return a table (``pyiceberg.table.Table``) as it is now, None if there is none.

        Raises TargetUnavailable, LoadError.
        """
        catalog, missing = self.catalog(), library().exceptions
        from sluice.targets.iceberg.manifest_files import with_kept_manifests

        with errors(self, doing, ".".join(identifier)):
            try:
                return with_kept_manifests(catalog.load_table(identifier))
            except (missing.NoSuchTableError, missing.NoSuchNamespaceError):
                return None

    def hidden(self, text: str) -> str:
        """Return ``text`` without the secrets of the connection."""
        secrets = (value for name, value in self.properties.items() if name not in _SHOWN)
        for value in sorted(filter(None, secrets), key=len, reverse=True):
            if len(value) > 3:
                text = text.replace(value, "***")
        return text


def transaction(table: Any) -> Any:
    """See :class:`sluice.targets.iceberg.catalog.KeptTransaction`."""
    from sluice.targets.iceberg.catalog import KeptTransaction

    return KeptTransaction(table)


def place_of(endpoint: Endpoint, catalog: Mapping[str, str], target: str) -> Place:
    """Build the location from the connection: for type fs a SQL catalog in its folder, else ``catalog`` of the extra
    and the login as ``credential``.

    If no catalog is named and the warehouse is a folder of this machine, it is a SQL catalog in that folder.

    Raises:
        ConfigError: no catalog is named.
    """
    extra = dict(endpoint.extra)
    extra_catalog = extra.get("catalog") or {}
    if not isinstance(extra_catalog, Mapping):
        raise ConfigError(f"connection {endpoint.connection_id!r}: catalog in extra is no object")
    for name, address in catalog.items():
        if name != "warehouse" and ("://" in address or _ADDRESS.search(name)):
            url = address if "://" in address else f"//{address}"
            require_own_address(endpoint, url, f"target {target!r}: options.catalog.{name}")
    properties = {str(name): str(value) for name, value in {**extra_catalog, **catalog}.items()}
    local = local_folder(properties.get("warehouse", ""))
    if local:
        properties["warehouse"] = f"file://{local}"
    folder = str(extra.get("path") or "").removeprefix("file://").rstrip("/") or local
    if folder and "uri" not in properties and properties.get("type", "sql") == "sql":
        uri = f"sqlite:///{folder}/catalog.db?timeout=60"
        properties = {"type": "sql", "uri": uri, "warehouse": f"file://{folder}", **properties}
        return Place(f"sql catalog {_bare(uri)}", properties, folder)
    if endpoint.kind == "http" and endpoint.host:
        uri = f"{endpoint.schema or 'https'}://{endpoint.address}"
        properties = {"type": "rest", "uri": uri, **properties}
    if endpoint.user and "credential" not in properties and properties.get("type") == "rest":
        properties["credential"] = f"{endpoint.user}:{endpoint.password}"
    if "uri" not in properties and properties.get("type") not in {"glue", "dynamodb", "in-memory"}:
        raise ConfigError(
            f"target {target!r}: nothing says which catalog has the tables",
            hint="options: {catalog: {type: rest, uri: https://…}}; catalog in the extra of connection "
            f"{endpoint.connection_id!r}; "
            "a connection of type fs: path; or a folder of this machine as warehouse, which then has a catalog of its "
            "own",
        )
    return Place(f"{properties.get('type', 'rest')} catalog {_bare(properties.get('uri', ''))}", properties)


def _bare(uri: str) -> str:
    """Return the URI without a login and without parameters."""
    scheme, sep, rest = uri.partition("://")
    return f"{scheme}{sep}{rest.rpartition('@')[2].partition('?')[0]}"


@contextmanager
def errors(place: Place, doing: str, where: str) -> Iterator[None]:
    """Turn errors of the library into Sluice's, without secrets; a lost race becomes :class:`Raced`."""
    from sqlalchemy.exc import SQLAlchemyError

    own = library().exceptions
    spot = f"{where} in {place.said}" if where else place.said
    try:
        yield
    except (SluiceError, Raced):
        raise
    except (own.NoSuchTableError, own.NoSuchNamespaceError) as error:  # it was there when it was opened
        raise TargetUnavailable(f"{doing}: {_said(place, error)}", where=spot) from None
    except (own.CommitFailedException, own.ValidationException) as error:
        raise Raced(place.hidden(str(error))) from None
    except (own.BadRequestError, own.ForbiddenError) as error:
        raise LoadError(f"{doing}: {_said(place, error)}", where=spot) from None
    except (OSError, own.RESTError, SQLAlchemyError) as error:
        raise TargetUnavailable(f"{doing}: {_said(place, error)}", where=spot) from None
    except (ValueError, TypeError, own.ValidationError, own.TableAlreadyExistsError) as error:
        raise LoadError(f"{doing}: {_said(place, error)}", where=spot) from None


def _said(place: Place, error: Exception) -> str:
    return place.hidden(str(error))[:1000] or type(error).__name__
