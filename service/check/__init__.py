"""What `quatserve check-gpu` measures on a real GPU. A check yields rows of the report."""
