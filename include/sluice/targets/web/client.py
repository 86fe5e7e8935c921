"""Send requests: with a login, again while the server does not answer or asks for patience, and never for longer than
said.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import structlog

from sluice import __version__
from sluice.config.receiver import Receiver, shown
from sluice.errors import ConfigError, LoadError, TargetUnavailable
from sluice.model.backoff import wait_after

_log = structlog.get_logger()
_FIRST_WAIT, _LONGEST_WAIT = timedelta(seconds=0.5), timedelta(seconds=30)
_SHORT_ANSWER = 64 * 1024
"""Bytes of an answer that are read where it only says what went wrong."""
LATER = frozenset({408, 425, 429})
"""Statuses below 500 that ask for another attempt."""
_LOGIN = frozenset({401, 403, 407})
NEVER = frozenset({501, 505})
"""Statuses of 500 and above that stay with the request."""
SERVER_ERRORS = 500
_UNAUTHORIZED, _CLIENT_ERRORS = 401, 400
_EARLY_S = 30.0
"""Seconds before its end after which an access token is not used any more."""

for _name in ("httpx", "httpcore"):  # a line for each request, with its address, in which keys of rows may be
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it is sent each time.

    ``names_row``: the address is that of one row; ``hidden``: the answer is not shown, nor the address.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    names_row: bool = False
    hidden: bool = False


class Ended(Exception):
    """Another request of the batch failed, so that this one is not sent again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Again:
    """The judgement that a request is to be sent again, and why."""

    why: str


_T = TypeVar("_T")


@dataclass
class Attempts:
    """The attempts at one request. ``until``: the end of the last wait, as :func:`time.monotonic` counts."""

    until: float
    failed: int = 0


@dataclass
class _Token:
    value: str = ""
    until: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


_tokens: dict[tuple[str, ...], _Token] = {}
_guard = threading.Lock()


class WebClient:
    """Sends requests of one target; threads share it. Must be closed.

    ``address``: the settings that say where requests go, for hints.

    Attributes:
        receiver: the server. doing: what is being done, for messages. target: its name.
        ended: set when the batch failed, so that nothing is sent again. retries: requests that were sent again.
    """

    def __init__(
        self,
        receiver: Receiver,
        doing: str,
        target: str,
        *,
        timeout: timedelta,
        retry_for: timedelta,
        connections: int = 1,
        answer_bytes: int = _SHORT_ANSWER,
        address: str = "the connection",
    ) -> None:
        self.receiver, self.doing, self.target = receiver, doing, target
        self.ended, self.retries = threading.Event(), 0
        self._retry_for, self._answer_bytes, self._address = retry_for, answer_bytes, address
        self._timeout_s = timeout.total_seconds()
        self._fixed = receiver.headers
        proxied: dict[str, Any] = {"proxy": receiver.proxy} if receiver.proxy else {}
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        try:
            self._client = httpx.Client(
                verify=receiver.tls,
                headers={"User-Agent": f"sluice/{__version__}", "Accept-Encoding": "identity"},
                timeout=self._timeout_s,
                limits=limits,
                follow_redirects=False,
                trust_env=False,
                **proxied,
            )
        except (ValueError, httpx.InvalidURL):
            raise ConfigError(f"connection {receiver.endpoint.connection_id!r}: proxy in extra is no address") from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def exchange(self, request: Request, judged: Callable[[Answer, bool], _T | Again]) -> _T:
        """Send a request until its answer is judged otherwise than :class:`Again`.

        ``judged``: told if an attempt before had no answer.

        Raises:
            ConfigError: the server's certificate is not accepted.
            LoadError: the request cannot be sent.
            TargetUnavailable: there is no such answer within ``retry_for``.
            Ended: the batch failed meanwhile.
        """
        if {".", ".."} & set(urlsplit(request.url).path.split("/")):
            raise LoadError(f"{self.doing}: a part of the address is . or .., which leads elsewhere",
                            where=self._where(request))  # fmt: skip
        attempts, unanswered, renewed = self.attempts(), False, False
        while True:
            if self.ended.is_set():
                raise Ended
            after: float | None = None
            try:
                answer = self._ask(request.method, request.url, self._headers(request), request.body)
            except httpx.HTTPError as error:
                why, unanswered = self._unanswered(error, request), True
            else:
                if answer.status == _UNAUTHORIZED and self.receiver.oauth and not renewed:
                    renewed = True
                    self._forget_token()
                    continue
                exchange = judged(answer, unanswered)
                if not isinstance(exchange, Again):
                    return exchange
                why, after = exchange.why, _retry_after(answer.headers)
            self.wait(why, after, attempts, request)

    def require_accepted(self, answer: Answer, request: Request) -> None:
        """Raise ConfigError for an answer that refuses the login, or sends the request elsewhere."""
        if answer.status // 100 == 2 or (answer.status >= _CLIENT_ERRORS and answer.status not in _LOGIN):
            return
        text, where = self.said(answer, request), self._where(request)
        if answer.status in _LOGIN:
            raise ConfigError(f"{self.doing}: {text}", where=where, hint="look at the login of the connection")
        place = self._plain(shown(answer.headers.get("location", "")))
        raise ConfigError(
            f"{self.doing}: {text}, which sends it elsewhere{f': {place}' if place else ''}",
            where=where,
            hint="redirects are not followed, as a login would go with them: write the last address into "
            f"{self._address}",
        )

    def said(self, answer: Answer, request: Request) -> str:
        """Return the status and the beginning of an answer, for messages."""
        text = "" if request.hidden else self._plain(shown(answer.text))
        return f"the receiver answers {answer.status}{f': {text}' if text else ''}"

    def _headers(self, request: Request) -> dict[str, str]:
        """Return the headers of one attempt."""
        return {**request.headers, **self._logged_in()}

    def attempts(self) -> Attempts:
        """Begin to count attempts, which end with ``retry_for``."""
        return Attempts(time.monotonic() + self._retry_for.total_seconds())

    def wait(self, why: str, after: float | None, attempts: Attempts, request: Request) -> None:
        """Wait until the next attempt, after one failed. Raises TargetUnavailable, Ended."""
        attempts.failed += 1
        wait_s = wait_after(attempts.failed, _FIRST_WAIT, _LONGEST_WAIT).total_seconds()
        pause = after if after is not None else wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        if time.monotonic() + pause > attempts.until:
            request_note = f", and asks to wait for {after:.0f} s" if after is not None else ""
            raise TargetUnavailable(
                f"{self.doing}: {why}{request_note}",
                where=self._where(request),
                hint=f"a load sends a request again for options.retry_for, {self._retry_for}; the task is retried "
                "after that",
            )
        self.retries += 1
        _log.info("http_request_repeated", target=self.target, reason=why, wait_s=round(pause, 1))
        if self.ended.wait(pause):
            raise Ended

    def _ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes, login: Any = None) -> Answer:
        """Send one request and read the answer, all within the timeout. Raises httpx.HTTPError."""
        until = time.monotonic() + self._timeout_s
        answer_stream = self._client.stream(
            method, url, headers=dict(headers), content=body, auth=login or self.receiver.login
        )
        with answer_stream as response:
            read = bytearray()
            for piece in response.iter_raw():
                read += piece
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("the answer is too slow")
                if len(read) > self._answer_bytes:
                    break
            return Answer(response.status_code, response.headers, bytes(read))

    def _unanswered(self, error: httpx.HTTPError, request: Request) -> str:
        """Return why there is no answer. Raises ConfigError if that does not change by itself."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise ConfigError(
                    f"{self.doing}: the server's certificate is not accepted: {cause.verify_message}",
                    where=self._where(request),
                    hint="name the certificate of its authority in the connection's extra: ca",
                ) from None
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            raise LoadError(
                f"{self.doing}: the request cannot be sent: {self._plain(shown(error))}", where=self._where(request)
            ) from None
        if isinstance(error, httpx.TimeoutException):
            return f"the receiver does not answer within {self._timeout_s:g} s"
        return f"the receiver does not answer: {self._plain(shown(error)) or type(error).__name__}"

    def _where(self, request: Request) -> str:
        return f"{request.method} {self.receiver.base if request.hidden else request.url}"

    # -- logins --------------------------------------------------------------------------------------------------------

    def _logged_in(self) -> dict[str, str]:
        if self.receiver.oauth is None:
            return self._fixed
        return {**self._fixed, "Authorization": f"Bearer {self._token()}"}

    @property
    def _token_slot(self) -> _Token:
        oauth = self.receiver.oauth
        assert oauth is not None
        name = (
            self.receiver.endpoint.connection_id,
            *(hashlib.sha256(value.encode()).hexdigest() for value in oauth.values()),
        )
        with _guard:
            return _tokens.setdefault(name, _Token())

    def _forget_token(self) -> None:
        self._token_slot.value = ""

    def _token(self) -> str:
        """Return an access token that is valid for a while; one is asked for if there is none.

        Raises as :meth:`exchange` does.
        """
        slot = self._token_slot
        with slot.lock:
            if not slot.value or time.monotonic() > slot.until:
                slot.value, lasts_s = self._new_token()
                slot.until = time.monotonic() + max(lasts_s - _EARLY_S, lasts_s / 2)
            return slot.value

    def _new_token(self) -> tuple[str, float]:
        """Ask for an access token (RFC 6749, 4.4); return it with the seconds that it lasts."""
        oauth = self.receiver.oauth
        assert oauth is not None
        form = {
            "grant_type": "client_credentials",
            "scope": oauth["oauth2_scope"],
            "audience": oauth["oauth2_audience"],
        }
        login = (quote(oauth["oauth2_client_id"], safe=""), quote(oauth["oauth2_client_secret"], safe=""))
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if oauth["oauth2_auth"] == "body":
            form |= {"client_id": oauth["oauth2_client_id"], "client_secret": oauth["oauth2_client_secret"]}
        else:
            plain = ":".join(login).encode()
            headers["Authorization"] = f"Basic {base64.b64encode(plain).decode()}"
        body = "&".join(f"{name}={quote(value, safe='')}" for name, value in form.items() if value).encode()
        url, doing = oauth["oauth2_token_url"], f"{self.doing}: asking for an access token"
        request = Request("POST", url, headers, body)
        attempts = self.attempts()
        while True:
            after: float | None = None
            try:
                answer = self._ask("POST", url, headers, body, login=_no_login)
            except httpx.HTTPError as error:
                why = f"asking for an access token: {self._unanswered(error, request)}"
            else:
                if answer.status // 100 == 2:
                    return self._read_token(answer, doing, url)
                why = (
                    f"asking for an access token: the server answers {answer.status}: {self._plain(shown(answer.text))}"
                )
                if answer.status not in LATER and answer.status < SERVER_ERRORS:
                    hint = (
                        "look at oauth2_client_id, oauth2_client_secret, oauth2_scope and oauth2_auth in the "
                        "connection's extra"
                    )
                    raise ConfigError(f"{self.doing}: {why}", where=url, hint=hint)
                after = _retry_after(answer.headers)
            self.wait(why, after, attempts, request)

    def _read_token(self, answer: Answer, doing: str, url: str) -> tuple[str, float]:
        try:
            document = json.loads(answer.text)
            token, lasts_s = document["access_token"], float(document.get("expires_in") or 300)
            if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
                raise ValueError("no token")
            if str(document.get("token_type", "bearer")).lower() != "bearer":
                raise ValueError("not a bearer token")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                f"{doing}: the answer has no bearer token", where=url, hint="is oauth2_token_url the token endpoint?"
            ) from None
        return token, lasts_s

    def _plain(self, text: str) -> str:
        oauth = self.receiver.oauth
        return self.receiver.scrubbed(text, self._token_slot.value) if oauth else self.receiver.scrubbed(text)


def may_pass_later(status: int) -> bool:
    """Return True for a status after which the same request is sent again."""
    return status in LATER or (status >= SERVER_ERRORS and status not in NEVER)


def _no_login(request: httpx.Request) -> httpx.Request:
    """Leave a request as it is: its login is in its headers already."""
    return request


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait, None if it does not say so in a way that is understood."""
    header = headers.get("retry-after", "").strip()
    if header.isdigit() and len(header) < 10:
        return float(header)
    try:
        at = parsedate_to_datetime(header)
    except (ValueError, TypeError, IndexError):
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max((at - datetime.now(UTC)).total_seconds(), 0.0)
