"""Records of collections: runs, rules, policies, holds, jobs, who planned, and signatures."""
