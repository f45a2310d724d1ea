"""Who a caller is: browsers' logins, other providers, and the first administrator."""
