"""Pruning: files of tables that nothing but their hidden branch names."""
