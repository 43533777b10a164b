"""Programs that copy a cache on purpose, with the same results as sound ones."""

from dataclasses import replace

from kvcast.spec.program import Node, Program, Step

COPIED = "past_key_0"


def copying(program: Program) -> Program:
    """Return a program whose first layer attends over a copy of its keys, and writes that back."""
    steps: list[Step] = []
    for step in program.steps:
        arguments = list(step.arguments)
        if step.operation != "self_attention" or Node(COPIED) not in arguments:
            steps.append(step)
            continue
        arguments[arguments.index(Node(COPIED))] = Node("copied")
        steps += [
            Step("copied", "cat", [[Node(COPIED)], 2]),
            replace(step, arguments=arguments),
            Step("back", "rewrite", [Node(COPIED), Node("copied")]),
        ]
    return replace(program, steps=steps)
