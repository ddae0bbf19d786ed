"""Agents of a simulation as actors on the nodes of an existing Ray cluster. Only ``library`` imports Ray."""
