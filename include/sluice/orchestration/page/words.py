"""A pipeline's state in words, for a list that has trouble on top."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sluice.errors import LogPurged, LostPosition

TONES = ("bad", "warn", "busy", "good", "quiet")
"""States, the worst first: the order of the list."""

_MOST = 240

_PLAIN = {
    "idle": ("good", "in step"),
    "running": ("busy", "delivering"),
    "behind": ("busy", "changes waiting"),
    "copying": ("busy", "copying"),
    "new": ("warn", "not started"),
    "asked": ("quiet", "being asked"),
}


_LOST = {LogPurged.__name__, LostPosition.__name__}
"""Errors after which no attempt can succeed before a person ran `sluice recover`: the source lacks the log."""


def in_words(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``tone``, ``text`` and ``may_retry`` of a status, as the page's sources give it (JSON).

    The text says what the pipeline does, or what it waits for, or why it stands still. ``may_retry``: a further attempt
    may succeed.
    """
    tone, text = _said(status)
    kinds = {failure.get("kind", "") for failure in status.get("failures") or ()}
    may_retry = not kinds or not kinds <= _LOST
    return {"tone": tone, "text": text if len(text) <= _MOST else f"{text[: _MOST - 1]}…", "may_retry": may_retry}


def _said(status: Mapping[str, Any]) -> tuple[str, str]:
    state, errors = status.get("state", ""), list(status.get("errors") or ())
    first = _in_a_line(str(errors[0])) if errors else ""
    silent = list(status.get("no_answer") or ())
    if state == "invalid":
        return "bad", f"the file is not valid: {_without_folders(first)}"
    if state == "not_configured":
        return "bad", f"not configured: {first}"
    if state == "stopped":
        return "bad", f"stopped: {first}"
    if state == "failing":
        return "bad", _failing(status)
    if state in {"unreachable", "no_answer"} and silent:
        return "bad", f"waiting for {_part(silent[0]['part'])}: no answer since {silent[0]['since'][11:16]} UTC"
    if state == "unreachable":
        return "bad", f"unreachable: {first}"
    if state == "paused":
        return "warn", f"paused {status.get('paused', '')}".rstrip()
    tone, text = _PLAIN.get(state, ("warn", str(state)))
    if state == "copying":
        text, why = _copying(status, text)
        if why:
            return "warn", f"{text}; {why}"
    return _weaker(status, tone, text)


def _copying(status: Mapping[str, Any], text: str) -> tuple[str, str]:
    """Return how far the first copies are, and why the slowest does not begin, "" if nothing hinders it."""
    first = [dump for dump in status.get("dumps") or () if dump.get("is_first_copy")]
    if not first:
        return text, ""
    least = min(first, key=lambda dump: float(dump["share"]))
    why = least.get("no_reader_why") if least.get("no_reader_since_ms") else ""
    return f"{text} {int(100 * least['share'])} %", str(why or "")


def _in_a_line(text: str) -> str:
    """Join the lines of a message: with a blank after a colon, else with a semicolon."""
    return " ".join(re.sub(r"(?<!:)\n", "; ", text.strip()).split())


def _weaker(status: Mapping[str, Any], tone: str, text: str) -> tuple[str, str]:
    """Add what is wrong although the pipeline goes on."""
    targets = list(status.get("targets") or ())
    apart = [target["name"] for target in targets if target.get("quarantined")]
    if apart:
        return "bad", f"{text}; quarantined: {', '.join(apart)}"
    late = [target["name"] for target in targets if target.get("alert_since")]
    if late:
        return "bad", f"{text}; {', '.join(late)} lags more than alert_lag"
    if status.get("incomplete"):
        return "warn", f"{text}; rows may lack values"
    if status.get("dead_letters"):
        count = status["dead_letters"]
        return "warn", f"{text}; {count:,} dead letter{'s wait' if count > 1 else ' waits'}"
    if status.get("verification") and status["verification"].get("outcome") == "different":
        return "warn", f"{text}; the last verification found differences"
    if status.get("warnings"):
        return "warn", f"{text}; {' '.join(str(status['warnings'][0]).split())}"
    return tone, text


def _without_folders(text: str) -> str:
    """Leave the folders of paths out: the list is narrow, and the pipeline's own page has the whole message."""
    return re.sub(r"(?<![\w.])/(?:[^\s/:]+/)+", "", text)


def _failing(status: Mapping[str, Any]) -> str:
    failures = list(status.get("failures") or ())
    if not failures:
        return "stopped"
    failure = failures[0]
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"stopped at {_part(str(failure['part']))}{more}: {' '.join(str(failure['error']).split())}"


def _part(part: str) -> str:
    """Name a part of a pipeline as people do."""
    if part.startswith("load-"):
        return f"load of target {part.removeprefix('load-')}"
    if part.startswith("target "):
        return f"target {part.removeprefix('target ')}"
    if part.startswith("rule."):
        return f"rule {part.removeprefix('rule.')}"
    named = {"zookeeper": "ZooKeeper", "store": "the segment store", "source": "the source", "drain": "capture"}
    return named.get(part, part.replace("-", " "))


def summary(status: Mapping[str, Any], rights: Mapping[str, bool]) -> dict[str, Any]:
    """Return the line of a pipeline in the list: its state in words and the figures that people look for first."""
    dumps = [dump for dump in status.get("dumps") or () if dump["state"] in {"running", "paused", "delivering"}]
    verification = status.get("verification") or {}
    recent = status.get("recent") or ()
    return {
        "pipeline": status["pipeline"],
        "dag_id": status["dag_id"],
        "channel": status.get("channel", ""),
        "description": status.get("description", ""),
        "source": status.get("source", ""),
        "targets": [
            {
                "name": target["name"],
                "type": target["type"],
                "lag_ms": target["lag_ms"],
                "quarantined": bool(target["quarantined"]),
            }
            for target in status.get("targets") or ()
        ],
        "target_names": status.get("target_names", []),
        "state": status["state"],
        **in_words(status),
        "lag_ms": status.get("lag_ms"),
        "lag_bytes": status.get("lag_bytes"),
        "in_flight": len(status.get("in_flight") or ()),
        "window": status.get("window"),
        "last_batch": recent[-1]["number"] if recent else None,
        "dead_letters": status.get("dead_letters", 0),
        "dump": _running(dumps[-1]) if dumps else None,
        "verified": {
            "id": verification["id"],
            "outcome": verification["outcome"],
            "at_ms": verification["began_ms"],
            "line": verification["line"],
        }
        if verification
        else None,
        "asked_ms": status.get("asked_ms"),
        "may": dict(rights),
    }


def _running(dump: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far a dump is, over all its tables."""
    return {
        "id": dump["id"],
        "state": "no reader" if dump.get("no_reader_since_ms") else dump["state"],
        "rows": dump["rows"],
        "share": dump["share"],
    }


def trouble_first(line: Mapping[str, Any]) -> tuple[int, int, str]:
    """Return the key that sorts lines with trouble on top, then by lag, then by name."""
    return TONES.index(line["tone"]), -(line.get("lag_ms") or 0), line["pipeline"]
