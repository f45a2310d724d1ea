"""Give every command its parts: the tree, parameters, the session, output and failures."""
