"""A training run: its directory, its steps, its checkpoints, its processes."""
