"""Runs jobs and turns what their ranks wrote into records."""
