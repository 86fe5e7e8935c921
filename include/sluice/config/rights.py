"""What the keys of pipeline, engine and channel files refer to: code, a location, an address, a connection; and who may
set each.

A key says it itself, by a :class:`Refers` among its annotations; the table is derived from the models. A person who may
write the folder of the files may set every key: those files are trusted as code is. A person who edits a file in the
browser sets what :func:`sluice.config.references.not_granted` leaves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sluice.config.folders import local_folder
from sluice.errors import ConfigError

FILE_ROOTS = "SLUICE_FILE_ROOTS"
"""The environment variable with the administrator's list of locations, between commas or on lines of their own."""


class Refers(StrEnum):
    """The kind of thing that the value of a key refers to."""

    CODE = "code"
    """Something that is imported, run, sent as a statement or read as a template or a client's setting."""
    LOCATION = "location"
    """A folder, a bucket, or a web address of files."""
    ADDRESS = "address"
    """A server, or a part of ZooKeeper."""
    CONNECTION = "connection"
    """A connection of Airflow."""
    KIND = "kind"
    """A registered kind, as which the connection beside it is used."""
    FORMAT = "format"
    """A message format: a built-in name, or that of code in the folder of formats or in a package."""
    RULES = "rules"
    """A file below the rules' folder, whose lookups name connections."""
    OPTIONS = "options"
    """Settings that the model of a target's kind describes; those of a kind that is not built in are code."""
    NOTHING = "nothing"
    """Nothing of these, although its name or its type looks like it."""


SETTERS: Mapping[Refers, str] = {
    Refers.CODE: "who may write the folder of the files",
    Refers.LOCATION: f"who may write the folder of the files; below a location of {FILE_ROOTS} also who edits the file",
    Refers.ADDRESS: "who may write the folder of the files",
    Refers.CONNECTION: "who may read the connection in Airflow",
    Refers.KIND: "who edits the file",
    Refers.FORMAT: "who edits the file",
    Refers.RULES: "who edits the file",
    Refers.OPTIONS: "as the model of the kind says",
}
"""Who may set a key. All of them are opened where batches are worked on, and none by the check of an unsaved text,
which asks through connections alone.
"""

_SUSPICIOUS = re.compile(
    r"connection|conn_id|path|ur[il]$|^ur[il]|class|_from|^from|location|folder|director|host|endpoint|address|server"
    r"|registry|catalog|warehouse|module|plugin|import|(^|_)script|command|file$|template|query|root"
)
_FREE = (Any, str, object)


def key_of(path: tuple[int | str, ...]) -> str:
    """Return the path of a key without numbers."""
    return ".".join("[]" if isinstance(part, int) else part for part in path).replace(".[]", "[]")


def refers(field: FieldInfo) -> Refers | None:
    """Return what a key says of itself; None: nothing."""
    return next((entry for entry in (*field.metadata, *_metadata(field.annotation)) if isinstance(entry, Refers)), None)


def _metadata(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    for part in get_args(annotation):
        yield from _metadata(part)


def looks_like_one(name: str, field: FieldInfo) -> bool:
    """Return True if a key's name or its type (any text by any name) says that it may refer to something."""
    return _is_free(field.annotation) or (_SUSPICIOUS.search(name) is not None and _has_text(field.annotation))


def _is_free(annotation: Any) -> bool:
    if annotation is Any:
        return True
    if get_origin(annotation) is not None and get_origin(annotation) in {dict, Mapping, _MAPPING}:
        return _plain(get_args(annotation)[1]) in _FREE or _is_free(get_args(annotation)[1])
    return any(_is_free(part) for part in get_args(annotation) if get_origin(annotation) is not Literal)


_MAPPING = get_origin(Mapping[str, str])


def _plain(annotation: Any) -> Any:
    """Return the type below annotations; of a union, the one that takes any text."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return next((member for member in map(_plain, get_args(annotation)) if member in _FREE), annotation)
    return annotation


def _has_text(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return False
    return annotation is str or any(_has_text(part) for part in get_args(annotation))


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a key's type names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def table(model: type[BaseModel], path: tuple[int | str, ...] = ()) -> dict[str, Refers]:
    """Return each key of a model that refers to something.

    Raises:
        ConfigError: a key looks as if it did, and does not say so.
    """
    references: dict[str, Refers] = {}
    for name, field in model.model_fields.items():
        own: tuple[int | str, ...] = (*path, field.alias or name)
        reference_kind, models = refers(field), list(models_in(field.annotation))
        if reference_kind is None and not models and looks_like_one(str(own[-1]), field):
            raise ConfigError(
                f"{key_of(own)} of {model.__name__} does not say what it refers to",
                hint="annotate it with a value of sluice.config.rights.Refers",
            )
        if reference_kind not in {None, Refers.NOTHING}:
            references[key_of(own)] = reference_kind
        for inner in models:
            references |= table(
                inner, (*own, 0) if get_args(field.annotation) and get_origin(field.annotation) in {tuple} else own
            )
    return references


def is_listed(location: str) -> bool:
    """Return True if a location is one of the administrator's list, or below one. Links of folders are followed."""
    roots = [entry.strip() for entry in re.split(r"[,\n]", os.environ.get(FILE_ROOTS, "")) if entry.strip()]
    folder = local_folder(location)
    if folder:
        real = Path(os.path.realpath(folder))
        return any(real.is_relative_to(os.path.realpath(local_folder(root))) for root in roots if local_folder(root))
    path, _, query = location.partition("?")
    if ".." in unquote(path).replace("\\", "/").split("/"):
        return False
    for entry in roots:
        root, _, settings = entry.partition("?")
        if urlsplit(root).netloc and query == settings and f"{path}/".startswith(f"{root.rstrip('/')}/"):
            return True
    return False


def require_listed(folder: str) -> str:
    """Return the folder of this machine that a location of row files leads to, without links.

    Raises ConfigError unless it is one of the administrator's list.
    """
    if not is_listed(folder):
        raise ConfigError(
            f"files are not read from or written to the folder {folder}: it is not in {FILE_ROOTS}",
            hint=f"who runs Sluice lists folders in {FILE_ROOTS} of all workers (/srv/assets,/srv/copies), or name a "
            "bucket or a server and its connection",
        )
    return os.path.realpath(folder)


_ALERT = re.compile(r"\{\{\s*alert\.(text|name|pipeline|state|target|lag_ms|limit_ms|rule|subscription)\s*\}\}")


def require_plain(value: Any) -> Any:
    """Return a value whose texts are no templates, but for keys of the alert: ``{{ alert.text }}``.

    Raises ValueError: Airflow would fill in secrets, such as ``conn`` and ``var``.
    """
    if isinstance(value, dict):
        for name, part in value.items():
            require_plain(name)
            require_plain(part)
    elif isinstance(value, list | tuple):
        for part in value:
            require_plain(part)
    elif isinstance(value, str) and re.search(r"\{[{%#]", _ALERT.sub("", value)):
        raise ValueError(
            "a text names keys of the alert alone, such as {{ alert.text }} or {{ alert.pipeline }}: no other "
            "template is filled in"
        )
    return value
