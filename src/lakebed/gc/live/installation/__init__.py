"""Check that one key-value store uses one namespace, and repair losses after a restored backup."""
