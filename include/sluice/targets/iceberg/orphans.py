"""Files in a table's folders that nothing names: those of failed commits, by processes that were killed before they could delete them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pyarrow.fs import FileSelector, FileType

_FOLDERS = ("data", "metadata")
"""The folders in which the client writes. What lies elsewhere in the table's location may be another table's."""


def files_of(table: Any, snapshots: Iterable[Any]) -> set[str]:
    """Return all files that snapshots consist of."""
    found: set[str] = set()
    for one in snapshots:
        found.add(one.manifest_list)
        for manifest in one.manifests(table.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                found |= {
                    entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                }
    return found


def orphans(table: Any, before: datetime) -> list[str]:
    """Return the paths of files that no snapshot and no metadata of a table (``Table``) names, last changed before a time.

    Call it inside the library's contexts. Files of a commit that is in progress are younger. A file that is named by a path with another scheme
    (``s3a://`` for ``s3://``) is the same file.
    """
    named = {_path(table, one)[1] for one in _named(table)}
    found = []
    for folder in _FOLDERS:
        files, root = _path(table, f"{table.location().rstrip('/')}/{folder}")
        for one in files.get_file_info(FileSelector(root, recursive=True, allow_not_found=True)):
            old = one.mtime is not None and one.mtime < before
            if one.type is FileType.File and old and one.path not in named:
                found.append(one.path)
    return found


def remove(table: Any, paths: list[str]) -> None:
    """Delete the files that :func:`orphans` found."""
    files, _ = _path(table, table.location())
    for path in paths:
        files.delete_file(path)


def _named(table: Any) -> set[str]:
    metadata = table.metadata
    found = files_of(table, table.snapshots()) | {table.metadata_location}
    found |= {one.metadata_file for one in metadata.metadata_log}
    return found | {one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)}


def _path(table: Any, location: str) -> tuple[Any, str]:
    """Return the file system of a location, and the path there."""
    scheme, host, path = table.io.parse_location(location, table.io.properties)
    return table.io.fs_by_scheme(scheme, host), path
