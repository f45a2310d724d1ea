"""Scenes: what actors do to a repository, drawn small by hand or large from a seed."""
