"""Worked examples that ship with the package, so that an installed `lakebed` runs them."""
