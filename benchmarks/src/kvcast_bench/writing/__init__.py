"""Files of models as other programs read them, from a checkpoint of kvcast: the same weights."""
