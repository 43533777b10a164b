"""What other programs are fed with, written from the checkpoint that kvcast reads."""
