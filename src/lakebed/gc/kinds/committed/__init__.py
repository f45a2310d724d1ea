"""Objects that only expired commits name."""
