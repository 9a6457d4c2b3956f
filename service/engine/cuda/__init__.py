"""CUDA sessions: the driver, the libraries, one session for each batch size, and what a failure means."""
