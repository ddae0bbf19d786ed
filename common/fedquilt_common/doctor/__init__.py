"""``fedquilt doctor``: check that this machine has everything that a run needs."""
