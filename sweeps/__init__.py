"""Hyperparameter studies with Optuna; `studies/` has their YAML files."""
