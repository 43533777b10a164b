"""What is measured of each kind of model, one file each; see `kvcast_bench.workload`."""
