"""From a training run to an artifact: folded, proven equal, written whole or not at all."""
