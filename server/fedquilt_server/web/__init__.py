"""The live status page, its API, its event stream and its metrics; all only read snapshots."""
