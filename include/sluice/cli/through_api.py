"""Commands through the API of the operator's page (option ``--api``), where ZooKeeper cannot be reached from here."""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from sluice.config.connections import Endpoint, from_environment, httpx_tls
from sluice.errors import ConfigError, CoordinationUnavailable
from sluice.operations.plan import ActionPlan, Plan, Stakes, together

if TYPE_CHECKING:
    import httpx

    from sluice.flows.dump.progress import DumpView
    from sluice.operations.deadletters.replay import ReplayOutcome
    from sluice.operations.deadletters.store import DeadLetter
    from sluice.operations.groups import GroupMove
    from sluice.operations.status import Status
    from sluice.operations.subscriptions import SubscriptionStatus
    from sluice.operations.verbs.orders import Order
    from sluice.operations.verify.progress import Told
    from sluice.operations.verify.result import VerifyResult

_T = TypeVar("_T")

TOKEN_VARIABLE = "SLUICE_API_TOKEN"  # noqa: S105 - the name of the variable
"""The environment variable with the token: an argument would be seen in the list of processes."""

ALLOW_HTTP = "SLUICE_API_ALLOW_HTTP"
"""The environment variable that allows a token to be sent without encryption to another host."""

LOOKS_EVERY_S = 2.0
"""Seconds between two questions for the result of a run."""

_CONNECT_S, _ANSWER_S = 10.0, 90.0
"""Seconds for a connection and for an answer; the API itself gives up an action after 60."""

_MOST = 500
_ASKED_TIMES = 10
"""Questions for a status that the page has not read yet; each waits some seconds."""

_GIVES_TOKEN = "`POST /auth/token` of Airflow gives one"  # noqa: S105 - a sentence


class PageApi:
    """The API of the operator's page of one Airflow; see :class:`sluice.cli.service.Service`."""

    def __init__(self, url: str, token: Callable[[PageApi], str]) -> None:
        """Connect to nothing yet. ``url``: of Airflow, of the page or of its API; ``token``: asked for once."""
        self._airflow = url.rstrip("/").removesuffix("/api/v1").removesuffix("/sluice")
        self.url = f"{self._airflow}/sluice/api/v1"
        self._find_token, self._token = token, ""

    @classmethod
    def named(cls, api: str, *, allow_http: bool = False) -> PageApi:
        """Return the API at a URL, or of a connection (``AIRFLOW_CONN_<ID>``): its password is the token, or with a
        login the password of the user for whom Airflow gives one. Raises ConfigError.
        """
        if "/" in api or ":" in api:
            return cls(_checked(api, allow_http), lambda _: _token_of_environment(api))
        endpoint = from_environment(api)
        url = _checked(_url_of(endpoint), allow_http)
        return cls(url, lambda page_api: page_api.token_of(endpoint))

    # -- actions ---------------------------------------------------------------------------------------------------
    def act(self, pipeline: str, action: str, order: Mapping[str, Any], *, dry_run: bool = False) -> ActionPlan:
        """Carry an action out, or return its plan. It is confirmed by the pipeline's name, as on the page."""
        from sluice.operations.verbs.table import VERBS

        if action == "make-missing" and not dry_run:
            return ActionPlan(action, tuple(self._check(pipeline, action, order)["applied"]))
        try:
            answers = [self._do(pipeline, action, order, dry_run=dry_run)]
        except ConfigError as error:
            names = self._pipelines_of(pipeline) if VERBS[action].of_channel else []
            if not names:
                raise error from None
            answers = [self._do(name, action, order, dry_run=dry_run) for name in names]
        return together([ActionPlan(action, tuple(answer["steps"])) for answer in answers])

    def plan(self, pipeline: str, action: str, order: Order) -> Plan:
        """Return the plan of an action."""
        answer = self._do(pipeline, action, order.model_dump(mode="json", exclude={"confirm"}), dry_run=True)
        fields = {name: answer[name] for name in ("action", "steps", "confirm", "command", "details")}
        return Plan(**fields, stakes=Stakes(answer["sent_again"], answer["lost"]))

    def _do(self, pipeline: str, action: str, order: Mapping[str, Any], *, dry_run: bool) -> dict[str, Any]:
        body = {name: value for name, value in order.items() if value is not None}
        path = f"{_path(pipeline)}/actions/{action}"
        if dry_run:
            return self._call("POST", f"{path}/plan", f"asking for the plan of {action}", body)
        return self._call("POST", path, f"{action} of {pipeline}", {**body, "confirm": pipeline})

    def _pipelines_of(self, name: str) -> list[str]:
        """Return the pipelines of the channel of this name; none: there is no such channel."""
        return [member for channel in self.channels() if channel["channel"] == name for member in channel["pipelines"]]

    def move_group(self, kind: str, group: str, order: Mapping[str, Any], *, dry_run: bool) -> Iterator[GroupMove]:
        """Move the pipelines of a source or target group; it is confirmed by the group's name, as on the page."""
        from sluice.operations.groups import GroupMove

        path, doing = f"/groups/{kind}/{quote(group, safe='')}/move", f"moving the {kind} group {group}"
        if dry_run:
            answer = self._call("POST", f"{path}/plan", f"asking for the plan of {doing}", dict(order))
        else:
            answer = self._call("POST", path, doing, {**order, "confirm": group})
        yield from (GroupMove.from_json(move) for move in answer["details"]["moves"])

    def audit(self, pipeline: str) -> list[dict[str, Any]]:
        """Return what people did to a pipeline, oldest first: the newest 500 entries."""
        answer = self._get(f"{_path(pipeline)}/audit", f"reading the audit of {pipeline}", most=_MOST)
        return list(answer["entries"])[::-1]

    def alerts(self, pipeline: str) -> dict[str, Any]:
        """Return the alert rules."""
        return self._get(f"{_path(pipeline)}/alerts", f"reading the alert rules of {pipeline}")

    def check(self, pipeline: str) -> dict[str, Any]:
        """Open a run of the DAG sluice_control that checks, wait for it, and return its report."""
        report = self._check(pipeline, "check", {})["report"]
        of_page = {"line", "field"}
        findings = [{key: finding[key] for key in finding if key not in of_page} for finding in report["findings"]]
        return {**report, "findings": findings}

    def _check(self, pipeline: str, action: str, order: Mapping[str, Any]) -> dict[str, Any]:
        run = self._do(pipeline, action, order, dry_run=False)["run"]

        def look() -> dict[str, Any] | None:
            last = self._get(f"{_path(pipeline)}/check", f"reading the check of {pipeline}")["last"]
            return last if last is not None and last["run"] == run["run_id"] else None

        return self._awaited(run, look)

    # -- what is shown ---------------------------------------------------------------------------------------------
    def statuses(self, pipeline: str | None) -> list[Status | dict[str, Any]]:
        """Return the status of one pipeline or of all that the token's user may see."""
        for _ in range(_ASKED_TIMES):
            if pipeline is not None:
                statuses = [self._get(_path(pipeline), f"reading the status of {pipeline}")]
            else:
                statuses = list(self._get("/status", "reading the statuses")["pipelines"])
            if all(status["state"] != "asked" for status in statuses):
                break
        return [_status(status) for status in statuses]

    def subscriptions(self, pipeline: str) -> list[SubscriptionStatus]:
        """Return the readers of a pipeline, as its status has them."""
        from sluice.operations.status import Status

        (status,) = self.statuses(pipeline)
        return status.subscriptions if isinstance(status, Status) else []

    # -- dumps -----------------------------------------------------------------------------------------------------
    def start_dump(
        self, pipeline: str, request: Mapping[str, Any], tuning: Mapping[str, Any], *, overwrite: bool, dry_run: bool
    ) -> ActionPlan:
        """Open a run of the backfill DAG, or return the plan."""
        given_values = {name: value for name, value in tuning.items() if value is not None}
        order = {
            **{name: request[name] for name in ("where", "since", "until", "index", "replace")},
            "tables": list(request["tables"]),
            "targets": list(request["targets"]),
            "first_key": _joined("--from", request["lower"]),
            "last_key": _joined("--to", request["upper"]),
            "keys": "\n".join(request["keys"]),
            "overwrite": overwrite,
            **given_values,
        }
        return self.act(pipeline, "dump-start", order, dry_run=dry_run)

    def dumps(self, pipeline: str) -> list[DumpView]:
        """Return all dumps, oldest first."""
        from sluice.flows.dump.progress import DumpView

        dumps = self._get(f"{_path(pipeline)}/dumps", f"reading the dumps of {pipeline}")["dumps"]
        return [DumpView.from_json(dump) for dump in reversed(dumps)]

    def dump(self, pipeline: str, dump: str) -> DumpView:
        """Return one dump; "": the newest that has not ended."""
        from sluice.flows.dump.progress import DumpView

        path = f"{_path(pipeline)}/dumps/{quote(dump or 'latest', safe='')}"
        return DumpView.from_json(self._get(path, f"reading a dump of {pipeline}"))

    def steer_dump(self, pipeline: str, change: str, dump: str, changes: Mapping[str, Any]) -> DumpView:
        """Pause, resume, cancel or tune a dump."""
        name = self.dump(pipeline, dump).id  # the newest may be another one afterwards
        self.act(pipeline, f"dump-{change}", {"dump": name, **changes})
        return self.dump(pipeline, name)

    def watching(self, pipeline: str) -> AbstractContextManager[Any]:
        """Keep nothing: each question is a request."""
        return nullcontext()

    # -- dead letters ----------------------------------------------------------------------------------------------
    def letters(self, pipeline: str, *, everything: bool) -> list[DeadLetter]:
        """Return the dead letters, oldest first."""
        from sluice.operations.deadletters.store import DeadLetter

        letters: list[dict[str, Any]] = []
        while True:
            path, doing = f"{_path(pipeline)}/dead-letters", f"reading the dead letters of {pipeline}"
            part = self._get(path, doing, every=everything, most=_MOST, after=len(letters))
            letters += part["letters"]
            if not part["letters"] or len(letters) >= part["count"]:
                return [DeadLetter.from_json(letter) for letter in reversed(letters)]

    def letter(self, pipeline: str, letter_id: str) -> tuple[DeadLetter, dict[str, Any]]:
        """Return a dead letter and its row, of which the API gives each value as text."""
        from sluice.operations.deadletters.store import DeadLetter

        path = f"{_path(pipeline)}/dead-letters/{quote(letter_id, safe='')}"
        letter = self._get(path, f"reading a dead letter of {pipeline}")
        return DeadLetter.from_json(letter), {name: letter[name] for name in ("row", "before")}

    def waiting_letters(self, pipeline: str, ids: Sequence[str]) -> list[DeadLetter]:
        """Return those of the letters that wait; no ids: all."""
        from sluice.operations.deadletters.store import DeadLetter

        if not ids:
            return self.letters(pipeline, everything=False)
        plan = self._do(pipeline, "letters-discard", {"ids": list(ids)}, dry_run=True)
        return [DeadLetter.from_json(letter) for letter in plan["details"]["letters"]]

    def replay(self, pipeline: str, ids: Sequence[str], target: str | None, *, dry_run: bool) -> list[ReplayOutcome]:
        """Deliver dead letters."""
        from sluice.model.stored_fields import known_fields
        from sluice.operations.deadletters.replay import ReplayOutcome

        order = {"ids": list(ids), "target": target}
        outcomes = self._do(pipeline, "letters-replay", order, dry_run=dry_run)["details"]["outcomes"]
        return [ReplayOutcome(**known_fields(ReplayOutcome, outcome)) for outcome in outcomes]

    def discard(self, pipeline: str, ids: Sequence[str], reason: str) -> list[DeadLetter]:
        """Settle dead letters without delivering them."""
        from sluice.operations.deadletters.store import DeadLetter

        answer = self._do(pipeline, "letters-discard", {"ids": list(ids), "reason": reason}, dry_run=False)
        return [DeadLetter.from_json(letter) for letter in answer["details"]["letters"]]

    # -- verifications ---------------------------------------------------------------------------------------------
    def verify(self, pipeline: str, request: Mapping[str, Any], on_progress: Told) -> VerifyResult:
        """Open a run of the verify DAG, and wait for its result. Raises ConfigError if the run ends without one."""
        order = {name: request[name] for name in ("where", "values")}
        order |= {name: list(request[name]) for name in ("tables", "targets")}
        order["sample"] = None if request["sample"] is None else 100 * request["sample"]
        order["method"] = request["method"]
        if request["repair"]:
            order["overwrite"] = request["overwrite"]
        run = self._do(pipeline, "repair" if request["repair"] else "verify", order, dry_run=False)["run"]
        author = f"airflow:{run['run_id']}"
        return self._awaited(
            run, lambda: next((result for result in self.results(pipeline) if result.by == author), None)
        )

    def _awaited(self, run: Mapping[str, str], look: Callable[[], _T | None]) -> _T:
        """Return the result of a run as soon as it can be seen. Raises ConfigError if the run ends without one."""
        dag_id, run_id = run["dag_id"], run["run_id"]
        path = f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"
        while True:
            state = self._call("GET", path, f"looking at run {run_id}", airflow=True)["state"]
            outcome = look()
            if outcome is not None:
                return outcome
            if state in {"failed", "success"}:
                raise ConfigError(
                    f"run {run_id} of {dag_id} ended without a result ({state})",
                    where=self._airflow,
                    hint="its log in Airflow says why",
                )
            time.sleep(LOOKS_EVERY_S)

    def results(self, pipeline: str) -> list[VerifyResult]:
        """Return the last verifications, oldest first."""
        from sluice.operations.verify.result import VerifyResult

        path, doing = f"{_path(pipeline)}/verifications", f"reading the verifications of {pipeline}"
        return [
            VerifyResult.model_validate(result) for result in reversed(self._get(path, doing, whole=True)["results"])
        ]

    def result(self, pipeline: str, name: str) -> VerifyResult:
        """Return one verification; "": the newest."""
        from sluice.operations.verify.result import VerifyResult

        path = f"{_path(pipeline)}/verifications/{quote(name or 'latest', safe='')}"
        return VerifyResult.model_validate(self._get(path, f"reading a verification of {pipeline}"))

    # -- channels --------------------------------------------------------------------------------------------------
    def channels(self) -> list[dict[str, Any]]:
        """Return the channels whose pipelines the token's user may see."""
        return list(self._get("/channels", "listing the channels")["channels"])

    def channel(self, name: str) -> dict[str, Any]:
        """Return one channel."""
        return self._get(f"/channels/{quote(name, safe='')}", f"reading the channel {name}")

    def conflicts(self, name: str) -> dict[str, Any]:
        """Return the conflicts of a channel."""
        return self._get(f"/channels/{quote(name, safe='')}/conflicts", f"reading the conflicts of {name}")

    # -- requests --------------------------------------------------------------------------------------------------
    def token_of(self, endpoint: Endpoint) -> str:
        """Return the token of a connection: its password, or what Airflow gives for login and password."""
        if not endpoint.password:
            return _token_of_environment(self.url)
        if not endpoint.user:
            return endpoint.password
        body = {"username": endpoint.user, "password": endpoint.password}
        answer = self._call("POST", "/auth/token", "logging in at Airflow", body, airflow=True, login=True)
        return str(answer.get("access_token", ""))

    def _get(self, path: str, doing: str, **query: Any) -> dict[str, Any]:
        words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
        return self._call("GET", f"{path}?{urlencode(words)}" if words else path, doing)

    def _call(
        self,
        method: str,
        path: str,
        doing: str,
        body: dict[str, Any] | None = None,
        *,
        airflow: bool = False,
        login: bool = False,
    ) -> dict[str, Any]:
        import httpx

        headers = {}
        if not login:
            self._token = self._token or self._find_token(self)
            headers["Authorization"] = f"Bearer {self._token}"
        at = self._airflow if airflow else self.url
        try:
            answer = httpx.request(
                method,
                at + path,
                json=body,
                headers=headers,
                timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
                trust_env=not _is_loopback(at),  # no proxy gets a token that is not encrypted
                verify=httpx_tls(),
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            unsent = method == "GET" or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise CoordinationUnavailable(
                f"{doing}: the API does not answer ({type(error).__name__})"
                + ("" if unsent else "; it may still be done"),
                where=at,
                hint="is Airflow's API server running there? `sluice audit PIPELINE` tells what was done",
            ) from None
        return self._read(answer, doing, at)

    def _read(self, answer: httpx.Response, doing: str, at: str) -> dict[str, Any]:
        """Return the JSON object of a good answer. Raises SluiceError for any other."""
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.is_success and isinstance(body, dict):
            return body
        detail = body.get("detail") if isinstance(body, dict) else None
        why = detail if isinstance(detail, str) else f"HTTP {answer.status_code}" + (f" {detail}" if detail else "")
        if answer.status_code in {502, 503, 504}:
            raise CoordinationUnavailable(f"{doing}: {why}", where=at, hint="try it again")
        hints = {
            401: f"the token in {TOKEN_VARIABLE} or of the connection is wrong or has expired: {_GIVES_TOKEN}",
            403: "the token's user lacks a right in Airflow; docs/page.md, Rights",
            404: "is it the URL of an Airflow with Sluice's page, and may the token's user see it?",
        }
        raise ConfigError(f"{doing}: {why}", where=at, hint=hints.get(answer.status_code, "see docs/page.md, API"))


def _path(pipeline: str) -> str:
    return f"/pipelines/{quote(pipeline, safe='')}"


def _joined(option: str, columns: Sequence[str]) -> str:
    """Return the columns of a key as the form of Airflow takes them. Raises ConfigError for a value with a comma."""
    if any("," in column for column in columns):
        raise ConfigError(
            f"{option} holds a comma, and cannot go through the API of the page: the form separates columns by commas",
            hint="--where says the same, as a condition",
        )
    return ",".join(columns)


def _status(answer: dict[str, Any]) -> Status | dict[str, Any]:
    from sluice.operations.status import Status

    if answer["state"] in {"invalid", "asked"}:
        silent = ["its servers were not asked in time; try again"] if answer["state"] == "asked" else []
        return {name: answer[name] for name in ("pipeline", "state")} | {"errors": answer.get("errors") or silent}
    return Status.from_json(answer)


def _token_of_environment(api: str) -> str:
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise ConfigError(f"there is no token for the API: {TOKEN_VARIABLE} is not set", where=api, hint=_GIVES_TOKEN)
    return token


def _url_of(endpoint: Endpoint) -> str:
    """Return the URL of a connection, in Airflow's notation for HTTP: schema (http, https), host, port, extra.path."""
    scheme = endpoint.schema or ("https" if endpoint.kind == "https" else "http")
    host = endpoint.host if "://" in endpoint.host else f"{scheme}://{endpoint.host}"
    return (f"{host}:{endpoint.port}" if endpoint.port else host) + str(endpoint.extra.get("path", ""))


def _checked(url: str, allow_http: bool) -> str:
    """Return the URL. Raises ConfigError for one that is none, or where the token would go unencrypted."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and parts.hostname and not parts.username and not parts.query
        _ = parts.port
    except ValueError:
        fits = None
    if not fits:
        raise ConfigError(
            "--api is not the URL of an Airflow API server",
            hint="for example https://airflow.example.com, without a login, or the id of a connection; the token goes "
            f"into {TOKEN_VARIABLE}",
        )
    if parts.scheme == "http" and not allow_http and not _is_loopback(url):
        raise ConfigError(
            "the token for the API would be sent without encryption",
            where=url,
            hint=f"use https://; --api-allow-http or {ALLOW_HTTP}=1 sends it all the same",
        )
    return url


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
