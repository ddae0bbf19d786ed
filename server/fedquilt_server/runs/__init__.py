"""The folder of a run: journal, blobs, checkpoints, result files."""
