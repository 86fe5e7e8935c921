"""The user's rules."""

from sluice.config.engine import EngineConfig, RuleConfig, RuleMatch
from sluice.rules.context import RuleContext
from sluice.rules.lookups import Lookup, LookupSource
from sluice.rules.ruleset import Rejected, RuleCount, Ruled, RuleSet

__all__ = [
    "EngineConfig", "Lookup", "LookupSource", "Rejected", "RuleConfig", "RuleContext", "RuleCount", "RuleMatch",
    "RuleSet", "Ruled",
]  # fmt: skip
