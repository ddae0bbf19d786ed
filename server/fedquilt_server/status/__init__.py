"""What a person sees of a run: snapshot, results, terminal."""
