"""All that is not committed: cells of a branch, the slices that hold their bytes, and addresses on their way to a cell.

layers     read a branch: staged cells over older ones over the commit
slices     where this server instance puts the bytes of uploads
entries    the writer and the reader
conditions the entry that a write requires at its path, and which entries are its own
uploads    addresses handed out to clients
copies     copies that move no bytes
"""
