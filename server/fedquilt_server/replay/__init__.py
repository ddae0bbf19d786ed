"""Replays a run from its journal, and predicts its round times with other settings."""
