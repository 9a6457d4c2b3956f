"""The same engine without a server: `quatserve classify` and `quatserve segment`."""
