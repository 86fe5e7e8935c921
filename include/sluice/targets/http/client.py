"""Send requests with a signature, and tell refusals of rows from what stops a load."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from sluice.config.connections import Endpoint
from sluice.config.receiver import Receiver
from sluice.errors import ConfigError, LoadError, TargetUnavailable
from sluice.targets.http.options import HttpOptions, Signature
from sluice.targets.web.client import NEVER, Again, Answer, Request, WebClient, may_pass_later

_NOT_OF_A_ROW = frozenset({404, 405, 410})
"""Statuses that speak of the address, unless it names the row."""
_CONFLICT = 409
_PROBE_S = 8.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The receiver's word that it will not take a request: its status and what it said."""

    status: int
    said: str


class HttpClient(WebClient):
    """See :class:`sluice.targets.web.client.WebClient`: for one target of type http."""

    def __init__(self, receiver: Receiver, options: HttpOptions, doing: str, target: str) -> None:
        super().__init__(
            receiver,
            doing,
            target,
            timeout=options.timeout,
            retry_for=options.retry_for,
            connections=options.concurrency,
            address="the connection and options.path",
        )
        self.options = options

    def send(self, request: Request) -> Refusal | None:
        """Send a request until it is taken (None) or refused.

        Raises:
            ConfigError: the login is refused, the address redirects, or the server's certificate is not accepted.
            LoadError: the receiver says that it has nothing at this address, or does not know the method.
            TargetUnavailable: it does not take the request within ``options.retry_for``.
            Ended: the batch failed meanwhile.
        """
        return self.exchange(request, lambda answer, unanswered: self._judged(answer, request, unanswered))

    def _headers(self, request: Request) -> dict[str, str]:
        """Return the headers of one attempt: receivers compare the time of a signature with their own."""
        how = self.options.signature
        signed = signature(how, self.receiver.hmac_secret, request.body, int(time.time())) if how else {}
        return {**request.headers, **signed, **self._logged_in()}

    def _judged(self, answer: Answer, request: Request, unanswered: bool) -> Refusal | Again | None:
        """Return None if the request was taken, a refusal, or why it is to be sent again.

        Raises ConfigError, LoadError.
        """
        status, success = answer.status, self.options.success
        if status // 100 == 2 and success is not None and not success.said_by(answer.body):
            return Refusal(status, self.said(answer, request))
        if status // 100 == 2 or (request.method == "DELETE" and status in {404, 410} and request.names_row):
            return None
        self.require_accepted(answer, request)
        text = self.said(answer, request)
        if may_pass_later(status) or (status == _CONFLICT and unanswered):
            return Again(text)  # a conflict after a request without an answer: the receiver is at work on that one
        if status in NEVER or (status in _NOT_OF_A_ROW and not request.names_row):
            raise LoadError(
                f"{self.doing}: {text}",
                where=self._where(request),
                hint="look at host and path of the connection, and at options.path and methods",
            )
        return Refusal(status, text)


def signature(how: Signature, secret: bytes, body: bytes, now: int) -> dict[str, str]:
    """Return the headers that sign a body."""
    signed = f"{now}.".encode() + body if how.timestamp_header else body
    digest = hmac.new(secret, signed, getattr(hashlib, how.algorithm)).digest()
    text = digest.hex() if how.encoding == "hex" else base64.b64encode(digest).decode()
    headers = {how.header: f"{how.prefix}{text}"}
    return {**headers, how.timestamp_header: str(now)} if how.timestamp_header else headers


def probe(endpoint: Endpoint) -> str:
    """Connect to the receiver's port, with TLS where the address has it; nothing is sent to it.

    Raises ConfigError, TargetUnavailable.
    """
    receiver = Receiver(endpoint)
    receiver.require_usable()
    parts = urlsplit(receiver.base)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((host, port), timeout=_PROBE_S) as plain:
            if parts.scheme == "https":
                receiver.tls.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"connecting: the server's certificate is not accepted: {error.verify_message}",
            where=receiver.base,
            hint="name the certificate of its authority in the connection's extra: ca",
        ) from None
    except OSError as error:
        raise TargetUnavailable(f"connecting: {error}", where=receiver.base) from None
    return f"{host} accepts connections; nothing was sent"
