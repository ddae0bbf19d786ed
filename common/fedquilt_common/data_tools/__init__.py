"""``fedquilt data``: list, download, inspect, partition and publish data sets."""
