"""Spark and the local engine at work: marks, plans and whole collections of large repositories."""
