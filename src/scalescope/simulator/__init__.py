"""Executes Plans over a Cluster: collective costs, the step simulator, grids."""
