"""Builds, describes and inspects artifact directories."""
