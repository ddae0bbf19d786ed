"""Partial sums: replies to the same slice that are added up, without any rounding, before they travel."""
