"""Sweeps: one experiment in several variations, each run in a folder of its own."""
