"""The pure programs of each family: what is exported, and what eager runs."""
