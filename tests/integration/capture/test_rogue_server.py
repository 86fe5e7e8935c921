"""A service that speaks MySQL's protocol and is no server of ours."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.running.command_line import command_line


class OnlyOK:
    """A service that lets everybody in and answers each command with a bare OK."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    @staticmethod
    def _answer(peer: socket.socket) -> None:
        def packet(number: int, body: bytes) -> bytes:
            return struct.pack("<I", len(body))[:3] + bytes([number]) + body

        ok = b"\x00\x00\x00\x02\x00\x00\x00"
        hello = b"\x0a8.4.0\x00" + struct.pack("<I", 1) + b"a" * 8 + b"\x00" + struct.pack("<H", 0xF7FF & ~0x800)
        hello += bytes([33]) + struct.pack("<HH", 2, 0x0088) + bytes([21]) + b"\x00" * 10 + b"b" * 12 + b"\x00"
        with peer, suppress(OSError):
            peer.sendall(packet(0, hello + b"mysql_native_password\x00"))
            peer.recv(65536)
            peer.sendall(packet(2, ok))
            while peer.recv(65536):
                peer.sendall(packet(1, ok))


def test_a_service_that_answers_every_question_with_ok_is_no_source(tmp_path: Path, zookeeper: Any) -> None:
    """Commands end with an error of their own and an exit code: an exception without one is raised by the command
    line's twin.
    """
    rogue = OnlyOK()
    (tmp_path / "rules").mkdir()
    (tmp_path / "case.yaml").write_text(
        "pipeline: case\nsource: {connection: rogue}\ntargets: [{name: copy, type: mysql, connection: rogue}]\n"
        f"coordination: {{root: /rogue-{rogue.port}}}\n"
    )
    extra = json.dumps({"ssl_mode": "disabled"})
    connection = {
        "conn_type": "mysql",
        "host": "127.0.0.1",
        "port": rogue.port,
        "login": "u",
        "password": "p",
        "extra": extra,
    }
    environment = {
        **os.environ,
        "AIRFLOW_CONN_ROGUE": json.dumps(connection),
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": zookeeper.connection_json(),
        "SLUICE_PIPELINES": str(tmp_path),
        "SLUICE_RULES": str(tmp_path / "rules"),
    }
    try:
        for command in (
            ["run", "case"],
            ["check", "case"],
            ["dump", "start", "case", "--detach", "--yes"],
            ["verify", "case"],
        ):
            done = command_line(command, environment=environment, folder=tmp_path)
            said = done.stdout + done.stderr
            assert done.returncode not in {0, None}, (command, said)
            assert "Traceback" not in said
            if command[0] in {"run", "check"}:
                assert "answered a question with an OK" in said, said
    finally:
        rogue.server.close()
