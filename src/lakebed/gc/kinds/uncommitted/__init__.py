"""Objects that no commit ever named: the plan, the state that one run leaves for the next (saved), and keys of an old
layout.
"""
