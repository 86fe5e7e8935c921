"""Rows of a batch as requests: which rows go together, the address, headers, body, and the key by which a repeat is
recognised.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, NamedTuple
from urllib.parse import quote

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


class Document(NamedTuple):
    """A document on its way.

    Attributes:
        row: number of the row in its piece.
        change: with table and key it tells the document apart in the batch, the same in each attempt.
        head: method, path and headers of its own of the request that it goes with.
        key: its message key as JSON, "" without one.
        order: documents with the same number are sent one after the other.
        hidden: its table has columns whose values are not shown.
    """

    table: TableId
    row: int
    change: str
    head: Head
    key: str
    value: bytes
    order: int
    hidden: bool


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

    def documents(self, writer: MessageWriter, piece: ChangePiece) -> list[Document]:
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
        table, orders = repeat(piece.table), map(zlib.crc32, messages.routes.to_pylist())
        if self.options.single and self.options.named & OF_ROWS:
            heads = [self._head(piece.table, op, key) for op, key in zip(sent_ops, keys, strict=True)]
        else:
            alike = {op: self._head(piece.table, op, "") for op in set(sent_ops)}
            heads = [alike[op] for op in sent_ops]
        values = messages.values.to_pylist()
        return list(map(Document, table, rows, changes, heads, keys, values, orders, repeat(hidden)))

    def lanes(self, documents: Iterable[Document]) -> list[list[Document]]:
        """Return the documents in lists that may be sent at the same time; each is in order."""
        count = 1 if self.options.ordering == "global" else self.options.concurrency
        lanes: list[list[Document]] = [[] for _ in range(count)]
        for document in documents:
            lanes[document.order % count].append(document)
        return [lane for lane in lanes if lane]

    def parts(self, lane: Sequence[Document]) -> Iterator[list[Document]]:
        """Yield the documents of each request: as many as fit whose method, address and headers are the same."""
        how, part, size, head = self.options.batch, list[Document](), 0, None
        for document in lane:
            if part and (
                document.head != head or len(part) >= how.max_rows or size + len(document.value) > how.max_bytes
            ):
                yield part
                part, size = [], 0
            part.append(document)
            size, head = size + len(document.value), document.head
        if part:
            yield part

    def request(self, part: Sequence[Document]) -> Request:
        """Return the request with these documents."""
        method, path, headers = part[0].head
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
        hidden = any(document.hidden for document in part)
        return Request(method, path, {**own, **dict(headers)}, body, "key" in self.options.named_in_path, hidden)

    def leads_elsewhere(self, url: str) -> bool:
        """Return True if a value is empty, "." or ".." between two slashes of the path: the request would go to another
        resource than that of its row.
        """
        template, path = (url_path.partition("?")[0].split("/") for url_path in (self.options.path, url))
        return any(part in {"", ".", ".."} and part != was for was, part in zip(template, path, strict=True))

    def key_of(self, part: Sequence[Document]) -> str:
        """Return the idempotency key of these documents: what they are, and not how many requests there are,
        decides.
        """
        identity = [
            self.pipeline,
            self.target,
            self.position,
            self.replay,
            *(f"{one.table} {one.change} {one.key}" for one in part),
        ]
        digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:24]
        tables = {one.table for one in part}
        unit = self.replay or (str(next(iter(tables))) if len(tables) == 1 else "changes")
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

    def _body(self, part: Sequence[Document], key: str) -> bytes:
        values = [document.value for document in part]
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
