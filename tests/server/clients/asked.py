"""Requests of each client library: a person, and a tool call."""

import sys

from pydantic import BaseModel

URL = f"{sys.argv[1]}/v1"
STATEMENT = "Ada is 36 years old."
QUESTION = "How is the weather in Nantes?"


class Person(BaseModel):
    """A person."""

    name: str
    age: int
