"""The folder of a run: journal, blobs, checkpoints and result files."""
