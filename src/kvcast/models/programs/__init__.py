"""The pure programs of each family, which exporters lower and eager runs."""
