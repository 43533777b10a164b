"""kvcast beside other programs and beside itself: `kvcast bench …`.

A *workload* says what is measured of one kind of model, a *backend* is one program that can do it.
The *runner* gives each backend a process and lets them take turns, the *report* makes one JSON
object of what they answered, and the *renderer* tables of that.

    cli          the words after `kvcast bench`
    commands     what a user asks for: which workload, which backends
    gpu          models and variants on a CUDA device
    recompute    the baseline without caches of cross keys and values
    peers        one file a library, and a table of programs for each workload
    workloads    one file each: speech, causal, seq2seq, serving, gpu
    clients      what asks servers over HTTP
    models       what is measured, and files that peers are fed with
    writing      files of Hugging Face, GGUF and ggml, for peers
    checkout     a model of some checkout's kvcast
    idle         when a turn may begin
    device       what a device of torch's is and how fast it reads memory

Imports go downwards in that list, never back.
"""
