"""What is known of each captured table: changes in the stored batches, its definition, its last copy, its last
verification, its dead letters.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sluice.coordination.state import PipelineState
from sluice.errors import SegmentError, SluiceError
from sluice.flows.dump.progress import view
from sluice.flows.dump.table_list import PATH as CAPTURED
from sluice.flows.stored import OpenState, stored_manifest
from sluice.model.batches import Batch
from sluice.model.definitions import Definitions
from sluice.operations.deadletters.store import DeadLetter
from sluice.operations.schema import table_id
from sluice.operations.verify.result import VerifyResult, kept
from sluice.segments.manifest import SegmentManifest
from sluice.segments.schemas import SchemaStore
from sluice.segments.store import SegmentStore
from sluice.sources.port import Source

RECENT = 20
"""Newest batches whose changes are counted by table."""

LOOKED_AT = 500
"""Newest batches that are searched for statements that changed a table."""

_LOOK_S = 5.0
"""Seconds after which the search ends, whatever is left; the answer says how many batches it covers."""

_DUMPS = 20


def tables(
    open_state: OpenState, store: SegmentStore, source: Source, known_letters: Iterable[DeadLetter]
) -> dict[str, Any]:
    """Return a line for each captured table, by name, and how many batches its changes were counted in.

    ``rows``: about how many the source has, as it guessed when the list was stored; None: not known.
    """
    with open_state() as state:
        cursor = state.cursor()
        counted = list(_newest(store, state, RECENT))
        dumps = [view(state, record) for name in state.dumps.ids()[-_DUMPS:] if (record := state.dumps.get(name))]
    lines = {name: _line(name, rows) for name, rows in _captured(store).items()}
    if cursor is not None and cursor.schema:
        _add_definitions(lines, SchemaStore(store).load(cursor.schema, source.stored_definitions))
    for number, manifest in counted:
        for file in manifest.files:
            line = lines.setdefault(str(file.table_id), _line(str(file.table_id), None))
            line["changes"] += file.inserts + file.updates + file.deletes
            line["reads"] += file.reads
            line["last_batch"] = max(line["last_batch"], number)
    for dump in dumps:
        for copied in dump.tables:
            last_dump = {"id": dump.id, "state": copied.state, "rows": copied.rows, "at_ms": dump.created_ms}
            lines.get(copied.table, {})["dump"] = last_dump
    _add_results(lines, kept(store, 10))
    for letter in known_letters:
        if letter.table in lines:
            lines[letter.table]["dead_letters"] += 1
    return {"tables": [lines[name] for name in sorted(lines)], "batches": len(counted)}


def _add_definitions(lines: dict[str, dict[str, Any]], known_definitions: Definitions) -> None:
    """Add columns and key; a pipeline whose list of tables is not stored yet gets its lines from here."""
    listed = bool(lines)
    for table in known_definitions.tables:
        definition = known_definitions.find(table)
        if definition is not None and (str(table) in lines or not listed):
            line = lines.setdefault(str(table), _line(str(table), None))
            line |= {"columns": len(definition.columns), "key": list(definition.row_key)}
    for table, why in known_definitions.unknown.items():
        if str(table) in lines:
            lines[str(table)]["unknown"] = why.to_json()


def _add_results(lines: dict[str, dict[str, Any]], results: Sequence[VerifyResult]) -> None:
    """Add what the newest verification of each table found."""
    for result in results:
        for table in result.tables:
            if table.table in lines and not table.skipped:
                last = {"id": result.id, "at_ms": result.began_ms, "target": table.target, "differing": table.differing}
                lines[table.table]["verified"] = last


def table(open_state: OpenState, store: SegmentStore, source: Source, name: str) -> dict[str, Any]:
    """Return a table's definition as of the captured position, and the statements that changed it, newest first, as
    far as they are in the newest stored batches (``looked_at`` of them).

    Raises ConfigError for a name that is not schema.table.
    """
    wanted_table = table_id(name)
    end, looked, statements = time.monotonic() + _LOOK_S, 0, []
    definition, unknown, position = None, None, ""
    with open_state() as state:
        cursor = state.cursor()
        for _, manifest in _newest(store, state, LOOKED_AT):
            looked += 1
            statements += [
                {
                    "batch": manifest.batch,
                    "file": statement.file,
                    "offset": statement.offset,
                    "gtid": statement.gtid,
                    "commit_time_us": statement.commit_time_us,
                    "sql": statement.sql[:10_000],
                }
                for statement in reversed(manifest.ddl)
                if statement.table == name
                or any(_names(change, wanted_table.schema, wanted_table.table) for change in statement.changes)
            ]
            if time.monotonic() > end:
                break
    if cursor is not None and cursor.schema:
        position = str(cursor.position)
        known_definitions = SchemaStore(store).load(cursor.schema, source.stored_definitions)
        is_defined, why = known_definitions.find(wanted_table), known_definitions.why_unknown(wanted_table)
        definition = is_defined.to_json() if is_defined else None
        unknown = why.to_json() if why else None
    return {
        "table": name,
        "position": position,
        "definition": definition,
        "unknown": unknown,
        "statements": statements,
        "looked_at": looked,
    }


def _names(change: dict[str, Any], schema: str, table: str) -> bool:
    """Return True if a stored change of a definition is one of this table."""
    return [schema, table] in (change.get("table"), change.get("renamed_to"))


def _newest(store: SegmentStore, state: PipelineState, most: int) -> Iterator[tuple[int, SegmentManifest]]:
    """Yield the newest stored batches, newest first. Those that cannot be read are left out."""
    for number in reversed(store.batches()[-most:]):
        record: Batch | None = None
        try:
            record = state.batches.get(number)
            manifest = stored_manifest(store, number, record)
        except SegmentError:
            continue
        if manifest is not None:
            yield number, manifest


def _captured(store: SegmentStore) -> dict[str, int]:
    """Return the captured tables and about how many rows each has, as the last capture stored them."""
    try:
        return dict(json.loads(store.read_bytes(CAPTURED)))
    except (SluiceError, ValueError):
        return {}


def _line(name: str, rows: int | None) -> dict[str, Any]:
    return {
        "table": name,
        "rows": rows,
        "columns": None,
        "key": [],
        "changes": 0,
        "reads": 0,
        "last_batch": 0,
        "dump": None,
        "verified": None,
        "dead_letters": 0,
    }
