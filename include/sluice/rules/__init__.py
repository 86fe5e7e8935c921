"""The user's rules."""

from sluice.rules.context import RuleContext
from sluice.rules.engine import EngineConfig, RuleConfig, RuleMatch
from sluice.rules.ruleset import RuleCount, RuleSet

__all__ = ["EngineConfig", "RuleConfig", "RuleContext", "RuleCount", "RuleMatch", "RuleSet"]
