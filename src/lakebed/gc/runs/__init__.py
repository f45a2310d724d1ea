"""One run: what its steps work with (context), that it is the only apply (fencing), what it deleted (recording),
how it goes on after a stop (resume), and how far it has come (status).
"""
