"""Reads training logs that people already have."""

from scalescope.measurement.logs.curves import read_logs

__all__ = ["read_logs"]
