"""Samplers and the Optuna ledger."""
