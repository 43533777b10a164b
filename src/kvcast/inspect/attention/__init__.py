"""`kvcast inspect attention`: what each position of a text attends to, in every layer and head."""
