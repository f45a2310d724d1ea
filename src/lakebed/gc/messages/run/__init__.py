"""The files in a run's folder: paths, tables, manifests, plans, reports, certificates."""
