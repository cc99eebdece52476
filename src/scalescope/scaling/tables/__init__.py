"""Reads scaling tables that people already have."""

from scalescope.scaling.tables.reading import read_table

__all__ = ["read_table"]
