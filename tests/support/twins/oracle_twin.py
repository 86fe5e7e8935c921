"""H2 in its Oracle mode, behind the calls of ``oracledb`` that the Oracle target makes.

H2 runs in a Java process of its own; Py4J, which PySpark brings, is the bridge to its JDBC driver. The statements are
those that Oracle would get, but for places of values (``?``). The dictionary views that the target reads are made here
over H2's own. What H2 and Oracle have in common is tested so, and nothing else: no test here has seen an Oracle server.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import oracledb

from devstack import maven, paths

SCHEMA = "SHOP"
_JARS = Path(__file__).with_name("jars") / "h2.lock"
_PLACES = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|:(\w+)""")
_DEFAULT = re.compile(r"(ALTER TABLE .+) MODIFY \((\"(?:[^\"]|\"\")*\") (DEFAULT .+)\)")
"""The only definition that H2 has in other words; and it has no SYS_EXTRACT_UTC."""
_OWN_SESSION = re.compile(r"ALTER SESSION SET ")
_CODES = {
    23505: 1, 42102: 942, 42103: 942, 42104: 942, 90079: 942, 40001: 60, 50200: 30006, 22001: 12899, 23502: 1400,
    22003: 1438, 22004: 1438, 42101: 955, 42122: 904, 42121: 1430, 23506: 2291, 23503: 2292, 23513: 2290, 90128: 1013,
    57014: 1013, 90007: 3113, 90067: 3113, 90098: 3113, 90121: 3113, 90108: 3113,
}  # fmt: skip
"""H2's codes, and Oracle's for the same."""
_PYTHON_TYPES: Mapping[Any, tuple[type, ...]] = {
    oracledb.DB_TYPE_NUMBER: (int, Decimal),
    oracledb.DB_TYPE_BINARY_FLOAT: (float,),
    oracledb.DB_TYPE_BINARY_DOUBLE: (float,),
    oracledb.DB_TYPE_DATE: (dt.datetime,),
    oracledb.DB_TYPE_TIMESTAMP: (dt.datetime,),
    oracledb.DB_TYPE_INTERVAL_DS: (dt.timedelta,),
    **dict.fromkeys((oracledb.DB_TYPE_VARCHAR, oracledb.DB_TYPE_CHAR, oracledb.DB_TYPE_CLOB), (str,)),
    **dict.fromkeys((oracledb.DB_TYPE_RAW, oracledb.DB_TYPE_BLOB), (bytes,)),
}
"""What the driver takes for each of its types."""
_VIEWS = (
    "CREATE SCHEMA IF NOT EXISTS SYS",
    f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
    "CREATE VIEW IF NOT EXISTS SYS.ALL_TABLES AS SELECT TABLE_SCHEMA AS OWNER, TABLE_NAME, 'N' AS TEMPORARY "
    "FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_TYPE = 'BASE TABLE'",
    """CREATE VIEW IF NOT EXISTS SYS.ALL_TAB_COLS AS SELECT TABLE_SCHEMA AS OWNER, TABLE_NAME, COLUMN_NAME,
    CASE DATA_TYPE WHEN 'NUMERIC' THEN 'NUMBER' WHEN 'DECFLOAT' THEN 'NUMBER' WHEN 'CHARACTER VARYING' THEN 'VARCHAR2'
      WHEN 'CHARACTER' THEN 'CHAR' WHEN 'BINARY VARYING' THEN 'RAW' WHEN 'CHARACTER LARGE OBJECT' THEN 'CLOB'
      WHEN 'BINARY LARGE OBJECT' THEN 'BLOB' WHEN 'REAL' THEN 'BINARY_FLOAT' WHEN 'DOUBLE PRECISION' THEN 'BINARY_DOUBLE'
      WHEN 'TIMESTAMP' THEN CASE DATETIME_PRECISION WHEN 0 THEN 'DATE' ELSE 'TIMESTAMP(' || DATETIME_PRECISION || ')' END
      WHEN 'INTERVAL' THEN 'INTERVAL DAY(' || INTERVAL_PRECISION || ') TO SECOND(' || DATETIME_PRECISION || ')'
      ELSE DATA_TYPE END AS DATA_TYPE,
    CHARACTER_OCTET_LENGTH AS DATA_LENGTH, CASE DATA_TYPE WHEN 'NUMERIC' THEN NUMERIC_PRECISION END AS DATA_PRECISION,
    CASE DATA_TYPE WHEN 'NUMERIC' THEN NUMERIC_SCALE END AS DATA_SCALE, CHARACTER_MAXIMUM_LENGTH AS CHAR_LENGTH,
    'C' AS CHAR_USED, CASE IS_NULLABLE WHEN 'YES' THEN 'Y' ELSE 'N' END AS NULLABLE, COLUMN_DEFAULT AS DATA_DEFAULT,
    CASE IS_GENERATED WHEN 'ALWAYS' THEN 'YES' ELSE 'NO' END AS VIRTUAL_COLUMN, 'NO' AS HIDDEN_COLUMN,
    ORDINAL_POSITION AS COLUMN_ID FROM INFORMATION_SCHEMA.COLUMNS""",
    "CREATE VIEW IF NOT EXISTS SYS.ALL_TAB_IDENTITY_COLS AS SELECT TABLE_SCHEMA AS OWNER, TABLE_NAME, COLUMN_NAME, "
    "IDENTITY_GENERATION AS GENERATION_TYPE FROM INFORMATION_SCHEMA.COLUMNS WHERE IS_IDENTITY = 'YES'",
    """CREATE VIEW IF NOT EXISTS SYS.ALL_CONSTRAINTS AS SELECT k.TABLE_SCHEMA AS OWNER, k.TABLE_NAME, k.CONSTRAINT_NAME,
    CASE k.CONSTRAINT_TYPE WHEN 'PRIMARY KEY' THEN 'P' WHEN 'UNIQUE' THEN 'U' WHEN 'FOREIGN KEY' THEN 'R' ELSE 'C' END
      AS CONSTRAINT_TYPE, 'ENABLED' AS STATUS, r.UNIQUE_CONSTRAINT_SCHEMA AS R_OWNER,
    r.UNIQUE_CONSTRAINT_NAME AS R_CONSTRAINT_NAME FROM INFORMATION_SCHEMA.TABLE_CONSTRAINTS k
    LEFT JOIN INFORMATION_SCHEMA.REFERENTIAL_CONSTRAINTS r ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA
      AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME""",
    "CREATE VIEW IF NOT EXISTS SYS.ALL_CONS_COLUMNS AS SELECT TABLE_SCHEMA AS OWNER, TABLE_NAME, CONSTRAINT_NAME, "
    "COLUMN_NAME, ORDINAL_POSITION AS POSITION FROM INFORMATION_SCHEMA.KEY_COLUMN_USAGE",
    "CREATE VIEW IF NOT EXISTS SYS.ALL_INDEXES AS SELECT INDEX_SCHEMA AS OWNER, TABLE_SCHEMA AS TABLE_OWNER, TABLE_NAME, "
    "INDEX_NAME, CASE WHEN INDEX_TYPE_NAME LIKE 'UNIQUE%' OR INDEX_TYPE_NAME LIKE 'PRIMARY%' THEN 'UNIQUE' "
    "ELSE 'NONUNIQUE' END AS UNIQUENESS, 'NORMAL' AS INDEX_TYPE FROM INFORMATION_SCHEMA.INDEXES",
    "CREATE VIEW IF NOT EXISTS SYS.ALL_IND_COLUMNS AS SELECT INDEX_SCHEMA AS INDEX_OWNER, INDEX_NAME, COLUMN_NAME, "
    "ORDINAL_POSITION AS COLUMN_POSITION FROM INFORMATION_SCHEMA.INDEX_COLUMNS",
    "CREATE VIEW IF NOT EXISTS SYS.ALL_TRIGGERS AS SELECT EVENT_OBJECT_SCHEMA AS TABLE_OWNER, "
    "EVENT_OBJECT_TABLE AS TABLE_NAME, TRIGGER_NAME, 'ENABLED' AS STATUS FROM INFORMATION_SCHEMA.TRIGGERS",
)


def _error(code: int, text: str) -> oracledb.Error:
    kind = oracledb.IntegrityError if code in {1, 1400, 2290, 2291, 2292} else oracledb.DatabaseError
    said = f"ORA-{code:05d}: {text}"
    return kind(SimpleNamespace(code=code, message=said, full_code=f"ORA-{code:05d}", isrecoverable=False))


@contextmanager
def _as_oracle() -> Iterator[None]:
    """Raise H2's errors as the driver raises Oracle's."""
    from py4j.protocol import Py4JJavaError, Py4JNetworkError

    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception
        code = int(cause.getErrorCode()) if "SQL" in cause.getClass().getName() or "Jdbc" in str(cause) else 0
        raise _error(_CODES.get(code, 900), f"{cause.getMessage()} (H2 {code})") from None
    except Py4JNetworkError as error:
        raise _error(3113, str(error)) from None


@dataclass
class OracleTwin:
    """One database, in memory, in a Java process that ends with :meth:`close`.

    ``statements``: what was run, as Oracle would have got it. ``lost_at``: the number of the statement from now on at
    which a connection of the target is lost, before (``done``: after) it is run; 0: none is.
    """

    name: str = "twin"
    statements: list[str] = field(default_factory=list)
    lost_at: int = 0
    done: bool = False

    def start(self) -> OracleTwin:
        """Start H2. Raises FetchFailed."""
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        jars = maven.fetch(paths.home() / "h2", maven.read_list(_JARS), what="H2")
        [py4j] = (paths.pyspark_home() / "jars").glob("py4j-*.jar")
        port, token, self._process = launch_gateway(
            classpath=str(next(jars.glob("h2-*.jar"))), jarpath=str(py4j), javaopts=["-Xmx256m", "-XX:+UseSerialGC"],
            die_on_exit=True, enable_auth=True, return_proc=True,
        )  # fmt: skip
        self.gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
        for statement in _VIEWS:
            self.run(statement)
        return self

    def close(self) -> None:
        """End the Java process."""
        with suppress(Exception):
            self.gateway.shutdown()
        self._process.kill()
        self._process.wait(10)

    def connect(self, **given: Any) -> Connection:
        """Stand in for ``oracledb.connect``."""
        assert given["user"]
        url = f"jdbc:h2:mem:{self.name};MODE=Oracle;DB_CLOSE_DELAY=-1;LOCK_TIMEOUT=10000;TIME ZONE=UTC"
        with _as_oracle():
            properties = self.gateway.jvm.java.util.Properties()
            opened = self.gateway.jvm.org.h2.Driver().connect(url, properties)
            opened.setAutoCommit(False)
        return Connection(self, opened, outside=given["user"] == "outside")

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements from outside of the target; return the rows of the last one."""
        connection = self.connect(user="outside")
        try:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            found = cursor.fetchall() if cursor.has_rows else []
            connection.commit()
            return found
        finally:
            connection.close()


class Connection:
    """Stands in for ``oracledb.Connection``."""

    def __init__(self, twin: OracleTwin, opened: Any, *, outside: bool = False) -> None:
        self.twin, self._opened, self.outside = twin, opened, outside
        self.call_timeout = 0
        self.max_identifier_length = 128
        self.version = "of H2"
        self.running: Any = None

    def cursor(self) -> Cursor:
        return Cursor(self)

    @contextmanager
    def may_be_lost(self) -> Iterator[None]:
        """Lose the connection before or after the block, if it is the turn of this statement."""
        mine = False
        if not self.outside and self.twin.lost_at:
            self.twin.lost_at -= 1
            mine = not self.twin.lost_at
        if mine and not self.twin.done:
            self._lose()
        yield
        if mine:
            self._lose()

    def _lose(self) -> None:
        self._opened.rollback()
        self._opened.close()
        raise _error(3113, "end-of-file on communication channel")

    def commit(self) -> None:
        with _as_oracle(), self.may_be_lost():
            self._opened.commit()

    def rollback(self) -> None:
        with _as_oracle():
            self._opened.rollback()

    def cancel(self) -> None:
        if self.running is not None:
            self.running.cancel()

    def ping(self) -> None:
        self.cursor().execute("SELECT 1 FROM dual")

    def is_healthy(self) -> bool:
        return not self._opened.isClosed()

    def close(self) -> None:
        with _as_oracle():
            if not self._opened.isClosed():
                self._opened.rollback()
            self._opened.close()


class Cursor:
    """Stands in for ``oracledb.Cursor``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._jvm = connection.twin.gateway.jvm
        self._types: dict[str, Any] = {}
        self._rows: Iterator[tuple[Any, ...]] = iter(())
        self.has_rows = False
        self.rowcount = 0
        self.arraysize = 100

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def setinputsizes(self, **types: Any) -> None:
        self._types = types

    def execute(self, statement: str, parameters: Any = (), **_: Any) -> None:
        given = parameters if isinstance(parameters, Mapping) else {str(n): v for n, v in enumerate(parameters, 1)}
        self._run(statement, [given])

    def executemany(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._run(statement, rows)

    def _run(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._connection.twin.statements.append(statement)
        types, self._types = self._types, {}
        self._rows, self.has_rows, self.rowcount = iter(()), False, 0
        if _OWN_SESSION.match(statement):
            return
        names = [found[1] for found in _PLACES.finditer(statement) if found[1]]
        text = _PLACES.sub(lambda found: "?" if found[1] else found[0], statement)
        text = text.replace("SYS_EXTRACT_UTC(SYSTIMESTAMP)", "SYSTIMESTAMP")
        text = _DEFAULT.sub(r"\1 ALTER COLUMN \2 SET \3", text)
        with _as_oracle(), self._connection.may_be_lost():
            prepared = self._connection._opened.prepareStatement(text)
            self._connection.running = prepared
            try:
                for row in rows:
                    if set(row) != set(names):
                        raise _error(1036, f"unrecognized bind variables {sorted(set(row) ^ set(names))}")
                    for place, name in enumerate(names, 1):
                        self._bind(prepared, place, row[name], types.get(name))
                    if prepared.execute():
                        self.has_rows, self._rows = True, iter(self._read(prepared.getResultSet()))
                    else:
                        self.rowcount += int(prepared.getUpdateCount())
            finally:
                self._connection.running = None
                prepared.close()

    def _bind(self, prepared: Any, place: int, value: Any, kind: Any) -> None:
        if value is not None and kind in _PYTHON_TYPES and not isinstance(value, _PYTHON_TYPES[kind]):
            raise TypeError(f"the driver takes no {type(value).__name__} for {kind}")
        match value:
            case None:
                prepared.setObject(place, None)
            case float():
                prepared.setDouble(place, value)
            case int() | Decimal():
                prepared.setBigDecimal(place, self._jvm.java.math.BigDecimal(f"{Decimal(value):f}"))
            case str():
                prepared.setString(place, value)
            case bytes():
                prepared.setBytes(place, value)
            case dt.datetime():
                prepared.setObject(place, self._jvm.java.time.LocalDateTime.parse(value.isoformat()))
            case dt.timedelta():
                micros = value // dt.timedelta(microseconds=1)
                seconds, rest = divmod(micros, 1_000_000)
                prepared.setObject(place, self._jvm.java.time.Duration.ofSeconds(seconds, rest * 1000))
            case _:
                raise TypeError(f"the driver takes no {type(value).__name__}")

    def _read(self, found: Any) -> list[tuple[Any, ...]]:
        about = found.getMetaData()
        kinds = [str(about.getColumnTypeName(n)) for n in range(1, about.getColumnCount() + 1)]
        rows = []
        while found.next():
            rows.append(tuple(self._value(found, n, kind) for n, kind in enumerate(kinds, 1)))
        return rows

    def _value(self, found: Any, place: int, kind: str) -> Any:
        if found.getObject(place) is None:
            return None
        if kind.startswith("TIMESTAMP"):
            return dt.datetime.fromisoformat(found.getString(place))
        if kind.startswith("INTERVAL"):
            span = found.getObject(place, self._jvm.java.lang.Class.forName("java.time.Duration"))
            return dt.timedelta(seconds=span.getSeconds(), microseconds=span.getNano() // 1000)
        if kind in {"NUMERIC", "DECFLOAT", "INTEGER", "BIGINT", "SMALLINT", "TINYINT"}:
            return Decimal(found.getString(place))
        if kind in {"REAL", "DOUBLE PRECISION"}:
            return float(found.getDouble(place))
        if kind.startswith("BINARY"):
            return bytes(found.getBytes(place))
        return str(found.getString(place))

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows
