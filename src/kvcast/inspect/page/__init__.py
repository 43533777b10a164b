"""`kvcast inspect cache --html`: one page with a slider over the calls of a schedule."""
