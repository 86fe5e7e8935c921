"""Where tables and columns go."""

from sluice.mapping.tables import Mapping, TableRoute

__all__ = ["Mapping", "TableRoute"]
