"""Readers -> intervals -> breakdown."""
