"""Reads scaling tables that people already have."""

from scalescope.measurement.tables.reading import read_table

__all__ = ["read_table"]
