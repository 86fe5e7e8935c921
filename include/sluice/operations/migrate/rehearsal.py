"""The rehearsal of a switch: everything that it does at both servers, with writes going on."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from sluice.coordination.migrations import Phase, Side
from sluice.errors import ConfigError
from sluice.operations.migrate.handover import acting, await_delivery, prepare, require_none, settle
from sluice.operations.migrate.sites import Sites
from sluice.sources.port.handover import Access


def rehearse(sites: Sites, *, limit_s: float, by: str) -> dict[str, Any]:
    """Compare both servers, deliver up to a head, raise counters, and run the statements that open and close servers in
    the state that they have. Return the seconds that each took.

    Raises ConfigError with what would keep writes from moving.
    """
    seconds: dict[str, float] = {}
    with sites.node() as node, node.conducting() as lease, ExitStack() as stack:
        migration = settle(sites, node, lease)
        require_none(sites, migration, Side.NEW)
        began = time.monotonic()
        late = prepare(sites, node, lease, Side.NEW, limit_s, migration.margin)
        seconds["compare"] = time.monotonic() - began
        flow = sites.flow_to(Side.NEW)
        state = stack.enter_context(flow.state())
        session = stack.enter_context(sites.source(Side.OLD).open())
        watch = stack.enter_context(closing(flow.source.watch()))
        cursor = state.cursor()
        watch.look(cursor.position if cursor else None)
        session.look_again()
        head, began = session.head, time.monotonic()
        assert head is not None, "the flow reads this log"
        if not await_delivery(flow, state, watch, head, within_s=limit_s):
            raise ConfigError(
                f"what was written was not delivered within {limit_s:g} s: the switch would return",
                hint=f"`sluice status {flow.name}` says what it waits for; or give it longer (--at-most)",
            )
        seconds["deliver"] = time.monotonic() - began
        began = time.monotonic()
        for side, access in ((Side.OLD, Access.OPEN), (Side.NEW, Access.CLOSED)):
            with acting(sites, node, lease, side) as control:
                control.allow(access, migration.locked_at(side))
        seconds["open and close"] = time.monotonic() - began
        node.write(lease, migration, replace(migration, phase=Phase.REHEARSED))
    sites.note("rehearse", by)
    return {"seconds": {step: round(taken_s, 3) for step, taken_s in seconds.items()}, "compared_while_stopped": late}
