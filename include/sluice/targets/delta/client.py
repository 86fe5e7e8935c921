"""The client library (delta-rs), the location of a target's tables, and the library's errors as Sluice's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sluice.config.connections import Endpoint, require_own_address
from sluice.errors import ConfigError, LoadError, SluiceError, TargetUnavailable
from sluice.model.client_packages import install_hint
from sluice.targets.lake.format import Raced

_S3 = re.compile(r"s3a?://", re.IGNORECASE)
_AWS = {
    "region_name": "AWS_REGION", "endpoint_url": "AWS_ENDPOINT_URL", "aws_session_token": "AWS_SESSION_TOKEN",
    "aws_access_key_id": "AWS_ACCESS_KEY_ID", "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
}  # fmt: skip
"""Names of settings: Airflow's Amazon provider -> the library."""
_UNSAFE = "aws_s3_allow_unsafe_rename"
_CONDITIONAL = frozenset({
    "aws_conditional_put",
    "conditional_put",
    "aws_copy_if_not_exists",
    "aws_s3_locking_provider",
})


def library() -> Any:
    """Import ``deltalake``. Raises ConfigError if it is not installed."""
    try:
        import deltalake
        import deltalake.exceptions  # noqa: F401 - used through the package
    except ImportError as error:
        raise ConfigError(
            "targets of type delta need the package deltalake, which is not installed",
            hint=install_hint("delta"),
        ) from error
    return deltalake


@dataclass(frozen=True)
class Place:
    """The location of the tables: ``root`` is a folder or a URL without a slash at its end.

    ``storage`` holds secrets and is never shown.
    """

    root: str
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    def uri(self, path: str) -> str:
        """Return the URI of a table."""
        return f"{self.root}/{path}"

    @property
    def on_s3(self) -> bool:
        """True if the tables are in a bucket."""
        return _S3.match(self.root) is not None

    def require_conditional_puts(self, target: str) -> None:
        """Raise ConfigError if S3 is not written by conditional puts: Spark commits by them, and does not see commits
        made by other means.
        """
        lowered = {name.lower(): value.lower() for name, value in self.storage.items()}
        unsuited = sorted(_CONDITIONAL & lowered.keys() - {"aws_conditional_put", "conditional_put"})
        put = lowered.get("aws_conditional_put") or lowered.get("conditional_put")
        if self.on_s3 and (unsuited or put != "etag"):
            raise ConfigError(
                f"target {target!r}: with execution: frame both writers commit to S3 by conditional puts, and "
                f"storage_options has {', '.join(unsuited) or f'aws_conditional_put = {put}'}",
                hint="leave it out of the connection's storage_options; or take execution: units",
            )

    def path(self, uri: str) -> str | None:
        """Return the inverse of :meth:`uri`, None for what lies elsewhere."""
        path = uri.removeprefix(f"{self.root}/")
        return path if path != uri and path and ".." not in path.split("/") else None

    def open(self, uri: str, doing: str) -> Any:
        """Return the newest version of a table (``DeltaTable``), None if there is none.

        Raises TargetUnavailable, LoadError.
        """
        delta = library()
        with errors(self, doing, uri):
            try:
                return delta.DeltaTable(uri, storage_options=dict(self.storage) or None)
            except delta.exceptions.TableNotFoundError:
                return None

    def hidden(self, text: str) -> str:
        """Return ``text`` without the secrets of the connection."""
        for value in sorted(filter(None, self.storage.values()), key=len, reverse=True):
            if len(value) > 3:
                text = text.replace(value, "***")
        return text


def place_of(endpoint: Endpoint, location: str, target: str) -> Place:
    """Build the location from the connection (types fs, aws, or any other with ``storage_options`` in its extra) and
    the option ``location``.

    Raises:
        ConfigError: no location is given, or the guarantee could not hold there.
    """
    extra = dict(endpoint.extra)
    root = location or str(extra.get("location") or extra.get("path") or "")
    if not root:
        raise ConfigError(
            f"target {target!r}: nothing says where the tables lie",
            hint="options: {location: /lake} or s3://bucket/lake; or location (of type fs: path) in the extra of "
            f"connection {endpoint.connection_id!r}",
        )
    root = root.removeprefix("file://").rstrip("/")
    if "://" not in root and not root.startswith("/"):
        raise ConfigError(
            f"target {target!r}: location {location or root!r} is neither an absolute folder nor a URL "
            "(s3://bucket/path)"
        )
    if location:
        require_own_address(endpoint, root, f"target {target!r}: options.location")
    storage = _storage(endpoint, extra)
    lowered = {name.lower(): value for name, value in storage.items()}
    if lowered.get(_UNSAFE, "false").lower() in {"1", "true", "yes"}:
        raise ConfigError(
            f"connection {endpoint.connection_id!r}: {_UNSAFE} lets two writers commit the same version, so that rows "
            "would be lost",
            hint="leave it out: conditional puts are used (aws_conditional_put=etag)",
        )
    if _S3.match(root):
        if not _CONDITIONAL & lowered.keys():
            storage["aws_conditional_put"] = "etag"
        if storage.get("AWS_ENDPOINT_URL", "").startswith("http://") and "aws_allow_http" not in lowered:
            storage["AWS_ALLOW_HTTP"] = "true"
    return Place(root, storage)


def _storage(endpoint: Endpoint, extra: Mapping[str, Any]) -> dict[str, str]:
    options = extra.get("storage_options") or {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"connection {endpoint.connection_id!r}: storage_options in extra is no object")
    storage: dict[str, str] = {}
    if endpoint.kind in {"aws", "s3"}:
        if endpoint.user:
            storage["AWS_ACCESS_KEY_ID"] = endpoint.user
        if endpoint.password:
            storage["AWS_SECRET_ACCESS_KEY"] = endpoint.password
        storage |= {option: str(extra[name]) for name, option in _AWS.items() if extra.get(name)}
    for name, value in options.items():
        if isinstance(value, bool):
            storage[str(name)] = str(value).lower()
        elif isinstance(value, str | int | float):
            storage[str(name)] = str(value)
        else:
            raise ConfigError(f"connection {endpoint.connection_id!r}: {name} in storage_options is no plain value")
    return storage


@contextmanager
def errors(place: Place, doing: str, uri: str) -> Iterator[None]:
    """Turn errors of the library into Sluice's, without secrets; a lost race becomes :class:`Raced`."""
    delta = library()
    own = delta.exceptions
    try:
        yield
    except (SluiceError, Raced):
        raise
    except own.CommitFailedError as error:
        if "Unsupported table features" in str(error):
            raise LoadError(f"{doing}: {_said(place, error)}", where=uri) from None
        raise Raced(place.hidden(str(error))) from None
    except own.TableNotFoundError as error:  # it was there, or its place cannot be made: a share that is away
        raise TargetUnavailable(f"{doing}: {_said(place, error)}", where=uri) from None
    except (own.DeltaError, ValueError, TypeError) as error:
        raise LoadError(f"{doing}: {_said(place, error)}", where=uri) from None
    except OSError as error:
        raise TargetUnavailable(f"{doing}: {_said(place, error)}", where=uri) from None


def _said(place: Place, error: Exception) -> str:
    return place.hidden(str(error))[:1000] or type(error).__name__
