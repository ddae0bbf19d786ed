"""The code that the coordinator and the agents share; imports neither of them."""

__version__ = "0.1.0"
