"""Sub-models: their index sets, how algorithms select them, and the patches in which they are published."""
