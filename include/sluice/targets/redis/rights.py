"""The rights that a login needs at Redis or Valkey: rules of an ACL.

A login that has no more cannot ask which it has; what the server denies is named with the rule for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sluice.model.rights import Purpose, Right, Scope

PATTERN = "~"
"""Stands for a pattern of keys."""

TARGET = (
    Right((PATTERN,), Scope.KEYS, Purpose.ROWS, "rows and comparisons"),
    Right((PATTERN,), Scope.OWN_KEYS, Purpose.CHECKPOINT, "the checkpoint, and definitions of tables"),
    Right(
        ("+client|setname", "+info", "+scan", "+type", "+exists", "+get", "+mget", "+hget", "+hmget", "+hgetall"),
        Scope.SERVER,
        Purpose.VERIFY,
        "the session, and reading rows and checkpoint",
    ),
    Right(
        (
            "+script|load",
            "+evalsha",
            "+watch",
            "+multi",
            "+exec",
            "+set",
            "+del",
            "+hset",
            "+hdel",
            "+rename",
        ),
        Scope.SERVER,
        Purpose.ROWS,
        "rows and checkpoint",
    ),
    Right(("+select",), Scope.SERVER, Purpose.ROWS, "another database than 0", required=False),
    Right(("+sadd", "+srem", "+zadd", "+zrem"), Scope.SERVER, Purpose.ROWS, "`options.indexes`", required=False),
    Right(("+pexpire", "+pexpireat"), Scope.SERVER, Purpose.ROWS, "`options.expire`", required=False),
    Right(("+xadd", "+xinfo|stream"), Scope.SERVER, Purpose.ROWS, "`changes: all`", required=False),
    Right(("+waitaof",), Scope.SERVER, Purpose.CHECKPOINT, "`options.fsync`", required=False),
    Right(("+config|get",), Scope.SERVER, Purpose.VERIFY, "`sluice check`, to say what the disk keeps", required=False),
    Right(
        ("+time",),
        Scope.SERVER,
        Purpose.VERIFY,
        "`sluice check`, `sluice verify` and dumps that replace rows, to see other pipelines",
        required=False,
    ),
)
"""The rights of a target's login."""


def set_user(user: str, rights: Iterable[Right], patterns: Iterable[str] = ()) -> str:
    """Return the statement that gives a login the commands of ``rights``, and keys of ``patterns``."""
    commands = (name for right in rights for name in right.privileges if name != PATTERN)
    return " ".join(["ACL SETUSER", user, *(f"{PATTERN}{pattern}" for pattern in patterns), *commands])


def set_user_for(text: str) -> str:
    """Return the statement for what the server denied, as its error says; "" if that is not known."""
    denied = re.search(r"(?:User (\S+)|this user) has no permissions to run the '([a-z|]+)' command", text)
    return f"ACL SETUSER {denied[1] or 'LOGIN'} +{denied[2]}" if denied else ""


__all__ = ["PATTERN", "TARGET", "set_user", "set_user_for"]
