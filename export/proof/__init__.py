"""Proofs that a written file computes what the trained network computes."""
