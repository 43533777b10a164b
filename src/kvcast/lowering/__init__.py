"""Programs to bundles: one module per runtime, and quantisation."""
