"""The plugin of a checkout. An installed package has it by its entry point and needs no file here."""

from sluice.orchestration.plugin import SluicePlugin

__all__ = ["SluicePlugin"]
