"""What lies in the folder of a run: paths, tables, manifests, plans, reports, certificates."""
