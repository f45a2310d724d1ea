"""Server processes: their data folder, start, end and background work."""
