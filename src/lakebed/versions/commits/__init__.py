"""Every move of a branch's head or of its staged changes.

committer   seal, build, claim, publish
merger      merge, revert, cherry-pick
recorder    commits of trees that are there
resetter    reset, hard reset
outbox      an event for each move
"""
