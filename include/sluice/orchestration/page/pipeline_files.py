"""Pipeline files that the page writes: where the deployment allows it, whole or not at all, and over no other edit."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sluice.config.connections import is_on
from sluice.config.drafts import diff
from sluice.config.loading import read_text
from sluice.errors import ConfigError, SluiceError

WRITABLE = "SLUICE_EDIT_PIPELINES"
"""The environment variable of the API server that lets the page write into the folder of the pipeline files."""


class ChangedMeanwhile(ConfigError):
    """Somebody else saved the file after it was opened."""


def writable(folder: Path) -> bool:
    """Return True if the deployment lets the page write pipeline files, and the folder takes them."""
    return is_on(os.environ.get(WRITABLE, "").strip()) and os.access(folder, os.W_OK | os.X_OK)


def version_of(text: str) -> str:
    """Return the version of a file's text; "" stands for a file that is not there."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def save(path: Path, text: str, opened: str, note: Callable[[str], None]) -> str:
    """Write a file and return its new version. ``note("")`` is called before, and what it raises prevents the write; if
    the write fails, ``note`` is called again with the reason.

    ``opened``: the version that was opened, "" for a new file. Raises ChangedMeanwhile, with the difference, if the
    file is another one by now, and ConfigError if it cannot be written.
    """
    if path.is_symlink():
        raise ConfigError(
            f"{path.name} is a link, which the page does not replace",
            hint="download the text and put it where it belongs",
        )
    with _alone(path.parent):
        now = read_text(path) if path.exists() else None
        if (version_of(now) if now is not None else "") != opened:
            raise ChangedMeanwhile(
                f"{path.name} was changed after you opened it; nothing was saved:\n{diff(now or '', text, path.name)}",
                hint="open it again, and make your change there",
            )
        note("")
        try:
            _replace(path, text)
        except OSError as error:
            why = str(error.strerror or error)
            with suppress(SluiceError):  # the failed write is the error to tell
                note(why)
            raise ConfigError(f"cannot write {path.name}: {why}", where=str(path.parent)) from error
    return version_of(text)


def _replace(path: Path, text: str) -> None:
    """Write beside the file and rename, so that a reader sees the old text or the new one."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process of this machine save into the folder at a time. Raises ConfigError."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"cannot open the folder of the pipeline files: {error.strerror}", where=str(folder)
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError("somebody else is saving a pipeline file now", hint="save again") from None
        yield
    finally:
        os.close(handle)
