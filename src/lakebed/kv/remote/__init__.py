"""A Store of a database on a network: the parts that its drivers share by composition.

store        `Database` is one attempt of each operation; `RemoteStore` adds retries, batches and the order
gathered     calls that wait at the same time share one request
kept, pace   connections that are lent to one caller each; the request rate that a database accepts
http_client  HTTP/1.1 for databases
"""
