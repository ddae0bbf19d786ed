"""Sub-models: index sets, their selection, and the patches in which they travel."""
