"""A receiver of mail on loopback: as much of SMTP as one message takes."""

from __future__ import annotations

import email
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message


@dataclass
class MailBox:
    """What arrived, and the connection of Airflow by which it is sent."""

    connection: str
    mails: list[Message] = field(default_factory=list)

    @property
    def subjects(self) -> list[str]:
        return [str(mail["Subject"]) for mail in self.mails]


class _Mail(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.say("220 loopback")
        while line := self.rfile.readline().decode().strip():
            word = line.partition(" ")[0].upper()
            if word == "DATA":
                self.say("354 go on")
                text = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    text += part
                self.server.box.mails.append(email.message_from_bytes(text))  # type: ignore[attr-defined]
            self.say("221 bye" if word == "QUIT" else "250 ok")
            if word == "QUIT":
                return

    def say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def mail_box() -> Iterator[MailBox]:
    """A server that takes mail until the end of the block."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Mail) as server:
        server.daemon_threads = True
        extra = {"disable_tls": True, "disable_ssl": True, "from_email": "sluice@example.com"}
        port = server.server_address[1]
        found = MailBox(json.dumps({"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": extra}))
        server.box = found  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()
