"""Rows of a batch as requests: which rows go together, the address, headers, body, and the key by which a repeat is
recognised.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from sluice.errors import MappingError
from sluice.formats import cloudevents
from sluice.model.batches import Op
from sluice.model.fields import is_masked, true_name
from sluice.model.tables import TableId
from sluice.targets.http.options import DOCUMENTS, OF_ROWS, HttpOptions
from sluice.targets.messages.documents import Messages, MessageWriter
from sluice.targets.port import ChangePiece, Fence
from sluice.targets.web.client import Request

Head = tuple[str, str, tuple[tuple[str, str], ...]]
"""Method, path and further headers."""
_OPS = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete", Op.READ: "read"}
_LONGEST_KEY, _LONGEST_LABEL = 200, 128
"""Characters of an idempotency key; many receivers store 255."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents on their way, as columns: an object for each would have the garbage collector look through all.

    Attributes:
        tables: name of each one's table. rows: number of the row in its piece.
        changes: with table and key it tells the document apart in the batch, the same in each attempt.
        heads: method, path and headers of the request that it goes with.
        keys: its message key as JSON, "" without one. values: what it says.
        orders: documents with the same number are sent one after the other.
        hidden: its table has columns whose values are not shown.
    """

    tables: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    hidden: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Documents:
        """Return documents that follow each other."""
        return Documents(*(column[part] for column in self._columns))

    @classmethod
    def joined(cls, parts: Iterable[Documents]) -> Documents:
        """Return the documents of parts, one part after the other."""
        return cls(
            *(list(chain.from_iterable(columns)) for columns in zip(*(part._columns for part in parts), strict=True))
        )

    def take(self, numbers: Sequence[int]) -> Documents:
        """Return some of the documents."""
        return Documents(*(list(map(column.__getitem__, numbers)) for column in self._columns))

    @property
    def _columns(self) -> tuple[list[Any], ...]:
        return (self.tables, self.rows, self.changes, self.heads, self.keys, self.values, self.orders, self.hidden)


@dataclass(frozen=True, slots=True)
class Sending:
    """What requests of a batch have in common.

    ``replay``: as in :class:`~sluice.targets.port.BatchInput`; ``position``: the batch's end, as text.
    """

    options: HttpOptions
    pipeline: str
    target: str
    fence: Fence
    replay: str
    position: str

    def documents(self, writer: MessageWriter, piece: ChangePiece) -> Documents:
        """Return the documents of a piece, in its order. Raises MappingError if a key cannot stand in an address."""
        if self.options.named & {"key"}:
            _require_plain_key(piece)
        messages: Messages = writer.messages(piece)
        assert messages.headers is not None  # the form has headers
        ops = [_OPS[op] for op in piece.rows["_op"].to_pylist()]
        hidden, rows = any(map(is_masked, piece.rows.schema)), messages.rows.tolist()
        sent_ops, last = [ops[row] for row in rows], -1
        twice = {row for row, following in pairwise(rows) if row == following}
        for number, row in enumerate(rows if twice else ()):
            if row in twice:  # an update of the key, as debezium has it
                sent_ops[number] = "insert" if row == last else "delete"
            last = row
        columns = (messages.headers.columns["sluice.change"], messages.keys.fill_null(b""))
        changes, keys = (column.cast(pa.large_string()).to_pylist() for column in columns)
        count, orders = len(rows), list(map(zlib.crc32, messages.routes.to_pylist()))
        if self.options.single and self.options.named & OF_ROWS:
            heads = [self._head(piece.table, op, key) for op, key in zip(sent_ops, keys, strict=True)]
        else:
            alike = {op: self._head(piece.table, op, "") for op in set(sent_ops)}
            heads = [alike[op] for op in sent_ops]
        values = messages.values.to_pylist()
        return Documents([str(piece.table)] * count, rows, changes, heads, keys, values, orders, [hidden] * count)

    def lanes(self, documents: Documents) -> list[Documents]:
        """Return the documents in lists that may be sent at the same time; each is in order."""
        count = 1 if self.options.ordering == "global" else self.options.concurrency
        lane = np.array(documents.orders, np.int64) % count
        return [documents.take(np.flatnonzero(lane == number).tolist()) for number in np.unique(lane).tolist()]

    def parts(self, lane: Documents) -> Iterator[Documents]:
        """Yield the documents of each request: as many as fit whose method, address and headers are the same."""
        how, first, size = self.options.batch, 0, 0
        for number, (head, value) in enumerate(zip(lane.heads, lane.values, strict=True)):
            full = number - first >= how.max_rows or size + len(value) > how.max_bytes
            if number > first and (full or head != lane.heads[first]):
                yield lane[first:number]
                first, size = number, 0
            size += len(value)
        if len(lane):
            yield lane[first:]

    def request(self, part: Documents) -> Request:
        """Return the request with these documents."""
        method, path, headers = part.heads[0]
        name = self.key_of(part)
        own = {
            "Content-Type": self._content_type(),
            self.options.idempotency_header: name,
            "Sluice-Pipeline": quote(self.pipeline),
            "Sluice-Target": quote(self.target),
            "Sluice-Batch": str(self.fence.batch),
            "Sluice-Epoch": str(self.fence.epoch),
        }
        body = b"" if method == "DELETE" else self._body(part, name)
        if method == "DELETE":
            del own["Content-Type"]
        return Request(
            method, path, {**own, **dict(headers)}, body, "key" in self.options.named_in_path, any(part.hidden)
        )

    def leads_elsewhere(self, url: str) -> bool:
        """Return True if a value is empty, "." or ".." between two slashes of the path: the request would go to another
        resource than that of its row.
        """
        template, path = (url_path.partition("?")[0].split("/") for url_path in (self.options.path, url))
        return any(part in {"", ".", ".."} and part != was for was, part in zip(template, path, strict=True))

    def key_of(self, part: Documents) -> str:
        """Return the idempotency key of these documents: what they are, and not how many requests there are,
        decides.
        """
        identity = [
            self.pipeline,
            self.target,
            self.position,
            self.replay,
            *map(" ".join, zip(part.tables, part.changes, part.keys, strict=True)),
        ]
        digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:24]
        tables = set(part.tables)
        unit = self.replay or (next(iter(tables)) if len(tables) == 1 else "changes")
        readable = "/".join(
            quote(str(word), safe=".-_~") for word in (self.pipeline, self.target, self.fence.batch, unit)
        )
        if self.options.idempotency_form == "label":
            return re.sub(r"[^A-Za-z0-9_-]", "-", f"{readable[: _LONGEST_LABEL - len(digest) - 1]}/{digest}")
        return f"{readable[: _LONGEST_KEY - len(digest) - 1]}/{digest}"

    def _head(self, table: TableId, op: str, key: str) -> Head:
        options = self.options
        words = {
            "schema": table.schema,
            "table": table.table,
            "pipeline": self.pipeline,
            "target": self.target,
        }
        if options.single:
            words |= {"op": op, "key": _plain_key(key)} if options.named & OF_ROWS else {}
        safe = {name: quote(word, safe="") for name, word in words.items()}
        if "key" in words:
            safe["key"] = ",".join(quote(part, safe="") for part in json.loads(words["key"]))
        methods = options.methods
        method = {"delete": methods.delete, "update": methods.update}.get(op, methods.insert)
        headers = tuple((name, template.format(**safe)) for name, template in options.headers.items())
        return method, options.path.format(**safe), headers

    def _content_type(self) -> str:
        options = self.options
        if options.batch.lines:
            return "application/x-ndjson"
        if options.body is None and options.format == "cloudevents-json":
            return (
                f"{cloudevents.CONTENT_TYPE if options.single else 'application/cloudevents-batch+json'}; charset=UTF-8"
            )
        return "application/json"

    def _body(self, part: Documents, key: str) -> bytes:
        values = part.values
        if self.options.batch.lines:
            return b"\n".join(values) + b"\n"
        documents = values[0] if self.options.single else b"[" + b",".join(values) + b"]"
        if self.options.body is None:
            return documents
        words = {
            "pipeline": self.pipeline, "target": self.target, "batch": str(self.fence.batch), "count": str(len(part)),
            "idempotency_key": key,
        }  # fmt: skip
        return _filled(self.options.body, words, documents.decode()).encode()


def _filled(body: Any, words: dict[str, str], documents: str) -> str:
    """Return a value as JSON with its texts filled in."""
    if body in DOCUMENTS:
        return documents
    if isinstance(body, str):
        return json.dumps(body.format(**words), ensure_ascii=False)
    if isinstance(body, dict):
        pairs = (
            f"{json.dumps(str(name), ensure_ascii=False)}:{_filled(inner_value, words, documents)}"
            for name, inner_value in body.items()
        )
        return "{" + ",".join(pairs) + "}"
    if isinstance(body, list):
        return "[" + ",".join(_filled(inner_value, words, documents) for inner_value in body) + "]"
    return json.dumps(body)


def _plain_key(key: str) -> str:
    """Return the values of a key as a JSON array of texts."""
    values = json.loads(key).values() if key else ()
    return json.dumps([
        "" if value is None else value if isinstance(value, str) else json.dumps(value) for value in values
    ])


def _require_plain_key(piece: ChangePiece) -> None:
    fields = {true_name(field): field.type for field in piece.rows.schema}
    if not piece.key:
        raise MappingError(
            f"rows of {piece.table} have no key, and options.path or headers name {{key}}",
            where=str(piece.table),
            hint="give it a primary key, or name the columns: mapping: key",
        )
    for name in piece.key:
        if not (
            pa.types.is_integer(fields[name])
            or pa.types.is_string(fields[name])
            or pa.types.is_large_string(fields[name])
        ):
            raise MappingError(
                f"the key column {name} of {piece.table} is neither a whole number nor a text, and {{key}} needs one",
                where=f"{piece.table}.{name}",
                hint="leave {key} out of options.path and headers; the document has the key",
            )
