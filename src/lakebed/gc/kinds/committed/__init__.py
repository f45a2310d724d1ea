"""Delete objects that only expired commits name."""
