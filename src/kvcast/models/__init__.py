"""Model definitions: for each family only what is its own."""
