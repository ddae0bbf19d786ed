"""``fedquilt doctor``: is everything here that a run needs, and if not, what is to be done."""
