"""How many examples Hypothesis tries, in one place: ``SLUICE_EXAMPLES`` is quick, ci or full."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PROFILES = {"quick": (20, 15), "ci": (40, 20), "full": (400, 50)}
"""Examples of a property, and steps of a state machine."""


def load() -> None:
    """Load the profile that the environment names.

    Properties have no deadline: on a busy machine a slow example is not a wrong one.
    """
    for name, (count, steps) in PROFILES.items():
        settings.register_profile(
            name,
            max_examples=count,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile(os.environ.get("SLUICE_EXAMPLES", "ci"))


def examples(part: float) -> int:
    """``part`` of the profile's examples, for a property of which one example takes long."""
    return max(3, round(part * settings().max_examples))
