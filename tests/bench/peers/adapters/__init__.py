"""One module per library: what it needs to take part. Each runs in its library's own environment."""
