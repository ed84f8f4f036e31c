"""An attack on the command line: it is killed, misled and fed with damaged files, and must lose and trust nothing.

`make attack` (or `python -m tests.attack`) runs ten kinds of cases in processes that are forked from one that has
imported everything (`tests/forked.py`), prints a table, and then every failure with the words that repeat it:

    kills          a training is killed, stopped, or finds a full disk, at a moment that is counted beforehand: every
                   fsync, mkdir, rename and unlink; build, step, checkpoint, evaluation, save. It is continued until it
                   ends, and must end in the same bytes as one left alone; with loader workers and two ranks too
    replacements   `import`, `train --overwrite`, `export`, `paper`, `rate` and `sample --trace` are stopped so, and run
                   again: what was there or what takes its place is there as a whole, and nothing else is touched
    endurance      one training is killed twenty times, at all stages, and must end in those bytes; on one and two ranks
    experiments    experiments mutated from those that ship and those of the tests: accepted, or refused in sentences
    command_lines  random words and values for every command
    artefacts      a file of a run or of a folder of shards is damaged: the result is the same, or a sentence
    received       a model of others is damaged, its links lead out, its weights are no numbers, and it is imported
    corpora        strange text is built into shards
    archives       a WebDataset is cut, joined, flipped, endless or of too many files: built whole, or a sentence
    connections    `atat serve` holds connections that say nothing or half of something, answers, and ends quietly

Everything about a case follows from the seed and its number: `python -m tests.attack kills --seed 17 --only 42` repeats
one case, `--keep FOLDER` leaves its files there. A case fails if there is a traceback, another exit code than the
command promises, a message that is no sentence, more than 2 GB of memory, no end, or another result. A kind is a module
here with a `KIND`: how its cases are prepared and attacked. `driver.py` runs, judges and counts them.
"""

KINDS = (
    "kills",
    "replacements",
    "endurance",
    "experiments",
    "command_lines",
    "artefacts",
    "received",
    "corpora",
    "archives",
    "connections",
)
