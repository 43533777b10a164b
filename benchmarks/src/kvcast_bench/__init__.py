"""Benchmarks of kvcast against other programs and its own variants: `kvcast bench …`.

A *workload* is a measurement of one kind of model, a *backend* one program that can do it.
The *runner* gives each backend a process and runs them in turn, the *report* makes one JSON
object of their results, and the *renderer* makes tables of it.

    cli          the arguments after `kvcast bench`
    commands     the command line: which workload, which backends
    gpu          models and variants on a CUDA device
    recompute    the baseline without a cross-attention cache
    peers        one file a library, and a table of programs for each workload
    workloads    one file each: speech, causal, seq2seq, serving, gpu
    clients      requests to servers over HTTP
    models       measured models, and their files for peers
    writing      files of Hugging Face, GGUF and ggml, for peers
    checkout     a model of some checkout's kvcast
    idle         when a turn may begin
    device       a device of torch's, and its speed of reading memory

Imports go downwards in that list, never back.
"""
