"""How a training scales: pure functions from launches, tables and logs to curves and sentences."""
