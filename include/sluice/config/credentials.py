"""Logins that expire: the password of a connection that a program or a plug-in gives, asked at every connect.

The extra of a connection says which: ``password_command`` (a program with its arguments, run without a shell) or
``credentials`` (one of :data:`READY`, or the name of an entry point of :data:`GROUP`: a function that takes the
:class:`Endpoint` and returns the password). Nothing is kept: neither in a file nor in this process.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, CredentialsUnavailable, SluiceError, first_line
from sluice.model.client_packages import install_hint
from sluice.model.nearest import meant

GROUP = "sluice.credentials"
"""The group of entry points."""
ALLOWED = "SLUICE_PASSWORD_COMMANDS"
"""The variable that lists the programs, by their full paths, which a connection may run."""
KINDS = frozenset({"mysql", "postgresql", "oracle"})
"""Kinds of sources and targets that ask at every connect."""
DEADLINE_S = 30.0

Connected = TypeVar("Connected")

_hears: list[Callable[[str], object]] = []


def hide_from(hears: Callable[[str], object]) -> None:
    """Give every password that comes to ``hears`` first, which keeps it out of logs (Airflow's ``mask_secret``)."""
    if hears not in _hears:
        _hears.append(hears)


def expires(endpoint: Endpoint) -> bool:
    """Return True if the connection's password is not its own text."""
    return bool(endpoint.extra.get("password_command") or endpoint.extra.get("credentials"))


def password_of(endpoint: Endpoint) -> str:
    """Return the password to connect with now: the connection's own, or what its program or plug-in gives.

    Raises:
        CredentialsUnavailable: neither gave one; the next attempt asks again.
        ConfigError: the extra names two ways, a program that may not be run, or a plug-in that is not installed.
    """
    command, plugin = endpoint.extra.get("password_command"), endpoint.extra.get("credentials")
    if not command and not plugin:
        return endpoint.password
    where = f"connection {endpoint.connection_id}"
    if (command and plugin) or endpoint.password:
        raise ConfigError(
            f"connection {endpoint.connection_id!r} says in two ways where its password comes from",
            where=where,
            hint="leave one of password, password_command and credentials",
        )
    password = _printed(_words(command, where), where) if command else _returned(str(plugin), endpoint, where)
    for hears in _hears:
        hears(password)
    return password


def logged_in(
    endpoint: Endpoint, connect: Callable[[str], Connected], is_refused: Callable[[Exception], bool]
) -> Connected:
    """Return what ``connect`` returns for the password of now; for another one if the server refuses one that expires.

    Raises what ``connect`` and :func:`password_of` raise.
    """
    try:
        return connect(password_of(endpoint))
    except Exception as error:
        if not expires(endpoint) or not is_refused(error):
            raise
    return connect(password_of(endpoint))


def _words(command: object, where: str) -> list[str]:
    """Return the program and its arguments. Raises ConfigError if it is none that a connection may run."""
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]  # type: ignore[attr-defined]
    except (ValueError, TypeError):
        words = []
    if not words:
        raise ConfigError("password_command is neither a text nor a list of words", where=where)
    allowed = [path for path in os.environ.get(ALLOWED, "").split(os.pathsep) if path]
    if words[0] not in allowed or not os.path.isabs(words[0]):
        raise ConfigError(
            f"the program {words[0]!r} may not be run for a password",
            where=where,
            hint=f"set {ALLOWED} to its full path in the environment of every process that connects (several with "
            f"{os.pathsep!r}): who may edit a connection may not run what they like",
        )
    return words


def _printed(words: list[str], where: str) -> str:
    """Return the first line that a program prints. What it prints reaches no message."""
    try:
        run = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CredentialsUnavailable(f"{words[0]} printed no password within {DEADLINE_S:g} s", where=where) from None
    except (OSError, ValueError) as error:
        raise CredentialsUnavailable(f"{words[0]} cannot be run for a password: {error}", where=where) from None
    password = run.stdout.partition("\n")[0].rstrip("\r")
    if run.returncode or not password:
        why = f"ended with {run.returncode}" if run.returncode else "printed nothing"
        raise CredentialsUnavailable(
            f"{words[0]} gave no password: it {why}",
            where=where,
            hint="run it by hand, with the same arguments, as the user that connects",
        )
    return password


def _returned(name: str, endpoint: Endpoint, where: str) -> str:
    """Return what a plug-in returns."""
    try:
        password = _plugin(name, where)(endpoint)
    except SluiceError:
        raise
    except ImportError as error:
        extra = _EXTRAS.get(name)
        raise ConfigError(
            f"credentials {name!r} cannot be imported: {error}", where=where, hint=extra and install_hint(extra)
        ) from None
    except Exception as error:  # whatever a cloud's client raises; its text names what was asked, not what was given
        raise CredentialsUnavailable(
            f"credentials {name!r} gave no password: {type(error).__name__}: {first_line(error)[:300]}", where=where
        ) from None
    if not isinstance(password, str) or not password:
        raise CredentialsUnavailable(f"credentials {name!r} returned no text", where=where)
    return password


def _plugin(name: str, where: str) -> Callable[[Endpoint], object]:
    if name in READY:
        return READY[name]
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in points:
        raise ConfigError(
            f"there are no credentials {name!r}{meant(name, [*READY, *points])}",
            where=where,
            hint=f"{', '.join(sorted({*READY, *points}))}; a package adds its own by an entry point of {GROUP!r}",
        )
    plugin: Callable[[Endpoint], object] = points[name].load()
    return plugin


def _rds_iam(endpoint: Endpoint) -> object:
    """Return a token of AWS for RDS and Aurora; it is signed here, with the credentials that boto3 has."""
    import boto3

    names = ("profile_name", "region_name")
    session = boto3.Session(**{name: endpoint.extra[name] for name in names if endpoint.extra.get(name)})
    default = 5432 if endpoint.kind.startswith("postgres") else 3306
    return session.client("rds").generate_db_auth_token(endpoint.host, endpoint.port or default, endpoint.user)


def _cloud_sql_iam(endpoint: Endpoint) -> object:
    """Return a token of Google for Cloud SQL, of the default credentials of this machine."""
    import google.auth
    from google.auth.transport.requests import Request

    login: Any = google.auth.default(scopes=["https://www.googleapis.com/auth/sqlservice.login"])[0]
    login.refresh(Request())
    return login.token


def _entra(endpoint: Endpoint) -> object:
    """Return a token of Microsoft Entra for Azure's databases, of the default credentials of this machine."""
    from azure.identity import DefaultAzureCredential

    with DefaultAzureCredential() as credential:
        return credential.get_token("https://ossrdbms-aad.database.windows.net/.default").token


READY: Mapping[str, Callable[[Endpoint], object]] = MappingProxyType({
    "rds_iam": _rds_iam,
    "cloud_sql_iam": _cloud_sql_iam,
    "entra": _entra,
})
"""The credentials that come with Sluice, by the name in a connection's extra."""
_EXTRAS = {"rds_iam": "aws", "cloud_sql_iam": "google", "entra": "azure"}
