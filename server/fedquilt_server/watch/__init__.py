"""`fedquilt watch`: a run in a terminal, from its status page, its broker or its folder."""
