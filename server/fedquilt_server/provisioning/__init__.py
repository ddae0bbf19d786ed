"""Provision a federation: its certificate authority, its broker's configuration and the identity of each board."""
