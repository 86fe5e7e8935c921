"""mysql-replication: a reader of the log in Python. Its place is that after the last whole transaction, as its examples keep it."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from decimal import Decimal
from importlib.metadata import version
from typing import Any

from pymysql.err import OperationalError
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.constants import FIELD_TYPE
from pymysqlreplication.event import QueryEvent, RotateEvent, XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, PartialUpdateRowsEvent, UpdateRowsEvent, WriteRowsEvent

from tests.league.judging import Change
from tests.league.servers import MARK
from tests.league.tools.port import Stage, Tool, wait_for

_ids = itertools.count(7300)


class MySQLReplication(Tool):
    name = "mysql-replication"
    servers = ("mysql", "mariadb")
    offers = frozenset({"ddl"})
    writes = False
    own = ""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.seen, self.marks = stage, [], 0
        self.place: tuple[str, int] | None = None
        self.stream: Any = None
        self.error = ""

    @staticmethod
    def version() -> str:
        return version("mysql-replication")

    def start(self) -> None:
        source = self.stage.ends.source
        self.place = self.place or self.stage.ends.position()
        self.stream = BinLogStreamReader(
            connection_settings={"host": source.host, "port": source.port, "user": "root", "passwd": "", "charset": "utf8mb4", "ssl_disabled": True},
            server_id=next(_ids), blocking=True, resume_stream=True, log_file=self.place[0], log_pos=self.place[1],
            only_events=[WriteRowsEvent, UpdateRowsEvent, PartialUpdateRowsEvent, DeleteRowsEvent, XidEvent, QueryEvent, RotateEvent],
            use_column_name_cache=True,
        )  # fmt: skip
        self.thread = threading.Thread(target=self._read, args=(self.stream,), daemon=True)
        self.thread.start()

    def _read(self, stream: Any) -> None:
        try:
            for event in stream:
                if stream is not self.stream:
                    return
                self._take(event)
                if isinstance(event, XidEvent | QueryEvent) and "BEGIN" not in str(getattr(event, "query", "")):
                    self.place = (stream.log_file, stream.log_pos)
        except Exception as error:
            if isinstance(error, OperationalError) and error.args[0] in {2003, 2013} and stream is self.stream:
                time.sleep(0.5)  # the server is away: whoever runs it begins again where it was
                self.start()
            elif stream is self.stream:
                self.error = f"{type(error).__name__}: {error}"

    def _take(self, event: Any) -> None:
        if not hasattr(event, "rows") or event.schema != self.stage.schema:
            return
        documents = {column.name for column in event.columns if column.type == FIELD_TYPE.JSON}
        for row in event.rows:
            for image in row.values():
                for name in documents & image.keys():
                    image[name] = image[name] if image[name] is None else json.dumps(_document(image[name]))
            if event.table == MARK:
                self.marks = max(self.marks, *(row.get("values") or row["after_values"]).values())
            elif isinstance(event, UpdateRowsEvent):
                self.seen.append(Change(event.table, "u", row["before_values"], row["after_values"]))
            elif isinstance(event, WriteRowsEvent):
                self.seen.append(Change(event.table, "i", None, row["values"]))
            else:
                self.seen.append(Change(event.table, "d", row["values"], None))

    def stop(self, *, kill: bool) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(Exception):
                stream._stream_connection._sock.shutdown(
                    socket.SHUT_RDWR
                )  # its close() waits for the thread that reads
            self.thread.join(10)
            with contextlib.suppress(Exception):
                stream.close()

    def catch_up(self, mark: int) -> None:
        wait_for(lambda: self.marks >= mark, lambda: self.error)

    def changes(self) -> list[Change]:
        return self.seen

    def close(self) -> None:
        self.stop(kill=True)


def _document(value: Any) -> Any:
    """Write what it makes of a JSON document as one: its texts are bytes."""
    if isinstance(value, dict):
        return {_document(key): _document(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_document(item) for item in value]
    if isinstance(value, Decimal):
        return float(value)
    return (
        value.decode()
        if isinstance(value, bytes)
        else value
        if isinstance(value, int | float | str | None)
        else str(value)
    )
