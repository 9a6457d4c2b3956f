"""The artifact directory: built, described, written whole or not at all."""
