"""Entry points for callers: the class (collector), functions for notebooks, branches, and the live side over HTTP."""
