"""Iceberg tables as a target."""
