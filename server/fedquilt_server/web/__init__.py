"""The status page, its API, event stream and metrics. All of them only read snapshots of the run."""
