"""Data sets, as they lie on disk and in memory; augmentation; downloads."""
