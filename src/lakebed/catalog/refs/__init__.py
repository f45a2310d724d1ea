"""Changes of branches and tags as users ask for them: their turn, hooks around them, and requests to merge.

changes   each change, with its guards
queue     the turns of the changes of one branch
hooks     the port to hooks: before a change, and after it
pulls     pull requests
"""
