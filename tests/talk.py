"""Dialogues of a small grammar."""

import json
import random

THINGS = ("ship", "tower", "garden", "bridge", "river", "market")
COLOURS = ("red", "green", "blue", "white")


def dialogues(number, seed=0):
    """Return dialogues as JSON has them, in both forms; their answers follow from what is asked."""
    draw, made = random.Random(seed), []
    for i in range(number):
        thing, colour, n = draw.choice(THINGS), draw.choice(COLOURS), draw.randint(2, 9)
        asked, answer = draw.choice(
            [
                (f"What colour is the {colour} {thing}?", f"The {thing} is {colour}."),
                (f"How many are {n} and one?", f"They are {n + 1}."),
                (f"Name the {thing}, number {i}.", f"It is a {thing}."),
            ]
        )
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        pair = {"prompt": asked, "response": answer}
        made.append(pair if i % 2 else {"messages": [{"role": "system", "content": "Be brief."}, *turns]})
    return made


def write(path, number=200, seed=0):
    """Write dialogues to a file."""
    path.write_text("".join(json.dumps(each) + "\n" for each in dialogues(number, seed)))
