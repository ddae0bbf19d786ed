"""Keeps participants that flood from delaying the others; the coordinator and the relay of a site use it."""
