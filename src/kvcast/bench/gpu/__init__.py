"""Greedy steps of models with random weights on one device, in several variants.

All variants of a model live in one process: its weights lie on the device once.
"""
