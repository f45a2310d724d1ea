"""One S3 request, read and checked before an operation sees it.

requests                   path, host and query: a place in the catalog
signatures                 the caller's signature
bodies, checksums          the body, its frame and its digests
headers, conditions, encoded_words   what the headers ask for
"""
