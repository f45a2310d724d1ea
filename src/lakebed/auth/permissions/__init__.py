"""Decide what a caller may do: the statements of policies, their holders, and the verdict on a request.

actions, globs, conditions  the words of a statement: names, patterns, and the requests that it is for
statements                  statements, and the permissions that they add up to. Pure
policies, groups            the records, over `register` (stored and built in) and `grants` (who holds which)
built_in                    policies and groups that every installation has
authorizer                  permissions of users, cached
"""
