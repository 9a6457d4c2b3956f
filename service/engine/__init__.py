"""Models that run: session, warm-up, batcher, registry. Knows nothing of HTTP."""
