"""Workloads, one file for each kind of model; see `kvcast_bench.workload`."""
