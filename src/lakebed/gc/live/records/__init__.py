"""Keep records of collections: runs, plans, rules, policies, holds, jobs and signatures."""
