"""Databases of Google Cloud over gRPC: Bigtable, Spanner, and the requests that both share."""
