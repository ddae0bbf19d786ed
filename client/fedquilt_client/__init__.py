"""The board: agent and training worker."""
