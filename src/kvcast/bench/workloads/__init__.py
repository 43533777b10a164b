"""What is measured of each kind of model, one file each; see `kvcast.bench.workload`."""
