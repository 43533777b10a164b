"""kvcast's runtimes beside one another, and beside what recomputes cross keys and values."""
