"""Measurements and inspections beside a run."""
