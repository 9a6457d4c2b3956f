"""Builds and trains hypercomplex residual networks: algebra -> layers -> network -> loop."""
