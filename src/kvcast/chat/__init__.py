"""Conversations: templates, tools, and the calls that models write."""
