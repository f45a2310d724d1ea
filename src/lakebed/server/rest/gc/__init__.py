"""Routes of collections: runs, rules, plans, ledgers, jobs, holds, policies and hard delete."""
