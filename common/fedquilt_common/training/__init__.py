"""Training and evaluation with torch."""
