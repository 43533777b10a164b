"""`kvcast bench generate`: decoder-only models beside other programs, with the same weights."""
