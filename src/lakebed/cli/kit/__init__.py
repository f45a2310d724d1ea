"""What every command is made of: the tree, parameters, the session, output and failures."""
