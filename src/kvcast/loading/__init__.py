"""Opening whatever a user names as a model; exporting it, with proof."""
