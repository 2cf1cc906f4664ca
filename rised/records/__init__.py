"""What is stored: record types, Parquet schemas, shards, manifests and the commit protocol."""
