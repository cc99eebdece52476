"""Figures of records, one file per record."""
