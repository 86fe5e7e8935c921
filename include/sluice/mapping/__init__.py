"""The tables and columns at the target."""

from sluice.mapping.tables import Mapping, TableRoute

__all__ = ["Mapping", "TableRoute"]
