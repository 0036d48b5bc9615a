"""Finding, verifying and choosing checkpoints, without unpickling."""
