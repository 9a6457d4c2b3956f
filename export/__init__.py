"""From a training run to an artifact: folded into plain convolutions, proven equal, written whole or not at all."""
