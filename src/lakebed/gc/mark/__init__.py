"""Mark garbage: listed objects (inputs), minus objects that a record names (sets) or a hold keeps (holding)."""
