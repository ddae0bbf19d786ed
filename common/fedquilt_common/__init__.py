"""What the coordinator and the agents must agree on; imports neither of them."""

__version__ = "0.1.0"
