"""Building blocks that make other libraries' models exportable with caches."""
