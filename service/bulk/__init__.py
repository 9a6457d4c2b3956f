"""`quatserve classify` and `quatserve segment`: files in, tables or pictures out, without a server."""
