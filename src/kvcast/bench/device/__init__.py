"""What `kvcast bench gpu` measures: greedy steps of models with random weights on one device."""
