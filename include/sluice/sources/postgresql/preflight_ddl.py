"""What a server lacks of the event triggers that write DDL into its log; see
:mod:`sluice.sources.postgresql.ddl_trigger`.

Without them nothing is lost: a changed definition is noticed at the next row of its table. So they are warnings. What
lets other roles run code with the rights of the triggers' owner, as a function of an older version does, is an error of
`sluice check`; a capture, which changes nothing about it, warns.
"""

from __future__ import annotations

from sluice.model.findings import Finding
from sluice.sources.postgresql.ddl_trigger import CREATE_TABLE, REMOVAL, SCHEMA, DdlTrigger, publish

DDL_SETTING = "source.ddl"
SHOWN = "`sluice check PIPELINE` prints the statements, and with --apply it runs them"
_UNTIL = "a changed definition is noticed at the next row of its table"


def ddl_findings(trigger: DdlTrigger, publication: str, *, wanted: bool = True) -> list[Finding]:
    """Return what keeps statements out of the log, with the statements that help; empty: nothing.

    ``wanted``: the pipeline reads them; if not, only what is unsafe of triggers that another pipeline reads.
    """
    severity = "error" if trigger.unsafe else "warning"
    if not wanted and not trigger.unsafe:
        return []
    if trigger.stranger:
        return [
            Finding(
                severity,
                DDL_SETTING,
                trigger.stranger,
                f"schema {SCHEMA}, or a part of it, belongs to {trigger.stranger}, who could write statements that "
                f"never ran: it is not used, and {_UNTIL}",
                f"a superuser looks at it, then: DROP SCHEMA {SCHEMA} CASCADE; then `sluice check PIPELINE --apply`",
            )
        ]
    lacking = _lacking(trigger, publication, wanted=wanted)
    if not lacking:
        return []
    if trigger.outdated:
        why = (
            "the function of the event triggers is not that of this version: by one of a version before, any role that "
            "may create a table runs code with the rights of the function's owner"
        )
    elif trigger.unsafe:
        why = "a role that may do more than read the table of noted statements runs code with the rights of its owner"
    elif trigger.disabled:
        why = f"event trigger {', '.join(trigger.disabled)} is disabled"
    elif trigger.missing and trigger.noted.complete:
        why = f"new tables are not added to publication {publication} in the statement that makes them"
    elif trigger.missing:
        why = "the event triggers that write statements into the log are missing, or a part of them"
    else:
        why = f"publication {publication} lacks the table of noted statements"
    if _disturbs(trigger):
        remedy = (
            f"publication {', '.join(trigger.others)} is FOR ALL TABLES, and would send this table, too: make it at "
            "the subscribers first (the first two statements), then run at the source, as a superuser:\n"
            + _as_script(lacking)
        )
    elif trigger.installs:
        remedy = "`sluice check PIPELINE --apply` makes it"
    else:
        remedy = f"as a superuser:\n{_as_script(lacking)}"
    if trigger.unsafe:
        removal = "" if wanted else f"; if no pipeline has ddl: true any more: {REMOVAL}"
        return [Finding(severity, DDL_SETTING, "unsafe", f"{why}; until it is replaced {_UNTIL}", remedy + removal)]
    if trigger.noted.complete:
        return [Finding("warning", DDL_SETTING, "not added", f"{why}; until then each has to be added by hand", remedy)]
    return [Finding("warning", DDL_SETTING, "not noted", f"{why}; until then {_UNTIL}", remedy)]


def made_for_ddl(trigger: DdlTrigger, publication: str, *, has_publication: bool, wanted: bool = True) -> list[str]:
    """Return the statements that this login may run; nothing if it may make no event trigger.

    ``wanted``: see :func:`ddl_findings`.

    Nothing either if subscribers of a publication FOR ALL TABLES would get rows of a table that they lack, and stop.
    """
    if trigger.stranger or not trigger.installs or _disturbs(trigger):
        return []
    return [
        statement
        for statement in _lacking(trigger, publication, wanted=wanted)
        if has_publication or statement != publish(publication)
    ]


def _disturbs(trigger: DdlTrigger) -> bool:
    return bool(trigger.others) and CREATE_TABLE in trigger.missing


def _lacking(trigger: DdlTrigger, publication: str, *, wanted: bool) -> list[str]:
    if not wanted:
        return list(trigger.unsafe)
    return [*trigger.missing, *([] if trigger.published else [publish(publication)])]


def _as_script(statements: list[str]) -> str:
    return "\n".join(f"{statement};" for statement in statements)


__all__ = ["DDL_SETTING", "SHOWN", "ddl_findings", "made_for_ddl"]
