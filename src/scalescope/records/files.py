"""Names of the files in result folders, where more than one room reads or writes them."""

PLAN = "plan.json"  # Of every verb that can be resumed
RUNS = "runs.jsonl"  # One Run per finished launch
MEASUREMENT = "measurement.json"
SCALING = "scaling.json"
EXPLANATION = "explanation.json"
AUTOTUNE = "autotune.json"
PREDICTION = "estimate.json"
PROFILE = "profile.json"
CLUSTER = "cluster.toml"
STEP = "step.json"  # The predicted step of the recommended cell
TUNING = "tuning.json"
