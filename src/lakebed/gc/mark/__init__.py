"""Mark garbage: the objects there (inputs), less those that something names (sets) or a hold keeps (holding)."""
