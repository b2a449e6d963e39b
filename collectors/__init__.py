"""Runs inside the training job: torch yes, pandas no."""
