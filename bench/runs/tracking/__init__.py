"""The mirror of a run in MLflow."""
