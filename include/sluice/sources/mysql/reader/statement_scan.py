"""Statements that stand further on in the log: proof that a definition read from the server now was the same at an
earlier position.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.config.connections import Endpoint
from sluice.sources.mysql.decoder import scan_kernel as sc
from sluice.sources.mysql.decoder.scanner import LoggedStatement, Scanner
from sluice.sources.mysql.position import Position, is_mariadb
from sluice.sources.mysql.protocol.log_archive import open_log
from sluice.sources.mysql.reader.feed import ScannerFeed
from sluice.sources.mysql.server.server_ids import lookahead_id

_STEP_S = 0.25


def statements_between(
    endpoint: Endpoint,
    *,
    server_id: int,
    start: Position,
    stop: Position,
    statement: Callable[[LoggedStatement], None],
    progress: Callable[[], None] | None = None,
) -> None:
    """Call ``statement`` for every statement event from ``start`` to ``stop``, in log order.

    Rows are framed and skipped.

    ``progress`` is called now and then; what it raises ends the reading. Raises what :func:`open_log` and
    :class:`Scanner` raise.
    """
    if not stop.follows(start):
        return

    def see(logged: LoggedStatement) -> bool:
        statement(logged)
        return False

    mariadb = is_mariadb(start.server_uuid)
    scanner = Scanner(
        start, tables=lambda *_: None, statement=see, seal=lambda _: None, reread=lambda *_: (), mariadb=mariadb
    )
    stream = open_log(endpoint, server_id=lookahead_id(server_id), start=start, mariadb=mariadb)
    try:
        scanner.s[sc.S_CRC] = int(stream.checksum)
        scanner.limit(max_changes=2**62, max_bytes=2**62, stop=stop)
        intake = ScannerFeed(stream, scanner)
        while not (scanner.between_transactions and scanner.reached(stop)):
            intake.step(_STEP_S)
            if progress is not None:
                progress()
    finally:
        stream.close()
