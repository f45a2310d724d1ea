"""Routes of callers: logins and users, logins in a browser, and their permissions."""
