"""`lakebed table`: commands.py has the verbs, text.py what people read."""
