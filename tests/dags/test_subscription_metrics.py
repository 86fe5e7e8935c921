"""The gauges of a pipeline that waits are sent without a question to its servers, unless a subscription lacks
something.
"""

from __future__ import annotations

from pathlib import Path

from sluice.orchestration.metrics import report, say_quiet
from tests.support.twins.pipes import pipe


def test_while_a_subscription_lags_the_servers_are_asked(tmp_path: Path) -> None:
    for one in pipe(tmp_path, "copy"):
        one.commit(("insert", "a", (1, "x")))
        one.deliver()
        runtime = one.made.runtime()
        report(runtime, every_s=0)
        assert say_quiet(runtime.name, 1, {"copy": 1})
        with runtime.state() as state:
            held = state.subscriptions.connect("reporting", "anna", None, 0, 5)
            assert held
        report(runtime, every_s=0)
        assert not say_quiet(runtime.name, 1, {"copy": 1})
        with runtime.state() as state:
            state.subscriptions.acknowledge(held, 1, 6)
        report(runtime, every_s=0)
        assert say_quiet(runtime.name, 1, {"copy": 1})
