"""Server processes: their data folder, their start, their end, and what they do beside answering."""
