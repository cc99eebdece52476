"""Charts, one file per record; altair is imported here and nowhere else."""
