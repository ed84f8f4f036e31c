"""What is written together is what would be written alone; who goes away costs nothing more, who fails fails alone."""

from __future__ import annotations

import queue
from functools import partial

import pytest
from atat_zoo_serve import Limits
from atat_zoo_serve.batching import BusyError, Done, Drawn, Failed, GoneError, Job, StoppedError, WantedText, Worker
from atat_zoo_serve.service import Plan, Service, rewrites
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st
from servers import SETS, served

from atat_zoo.generation.layout import parse
from atat_zoo.generation.samplers.published_samplers import AncestralSampler
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError
from atat_zoo.testing.toys import Hashed, hashed_importance
from tests.generation.alphabet import Alphabet
from tests.generation.making import tiny_model

LETTERS = Alphabet("abcdefgh", bos=8, eos=9)
SAMPLERS = [
    Zoo.load().spec("sampler", table)
    for table in (
        {"use": "ancestral", "steps": 5},
        {"use": "uncertainty_guided", "min_steps": 2, "max_steps": 5, "threshold": 0.1},
        {"use": "remdm_cap", "steps": 7},
        {"use": "semi_autoregressive", "block_size": 3, "block_sampler": {"use": "ancestral", "steps": 2}},
    )
]
# Two of one length, and others of four.
TEXTS = ["[MASK:8]", "ab[MASK:4]c[MASK:1]", "abc[MASK:2]de[MASK:3]", "[MASK:1]", "a[MASK:4]", "[MASK:9]a"]


class Toy:
    """A worker in this thread, and what it tells of the jobs that are asked for."""

    def __init__(self, **limits):
        self.denoiser = Hashed(10, window=12, importance=hashed_importance)
        self.text_generator = TextGenerator(denoiser=self.denoiser, tokenizer=LETTERS, length=12, special="sequence")
        self.worker = Worker(self.text_generator, **({"batch_size": 4, "waiting": 99} | limits))
        self.events = []

    def ask(self, text, *, seed=0, number=1, sampler=SAMPLERS[0], follows=True, tell=None):
        layout = self.text_generator.lay_out(parse(text))

        def begin(job):
            return [WantedText(index=k, number=k, layout=layout, lengths=layout.choices[0]) for k in range(number)]

        events = []
        tell, final = tell or events.append, not rewrites(sampler)
        job = Job(sampler=sampler, seed=seed, begin=begin, tell=tell, follows=follows, rewrites=not final)
        self.worker.submit(job)
        return job, events

    def work(self):
        while self.worker.queue:
            self.worker.turn()


def done(events):
    """Return tokens and evaluations of each text."""
    return {event.text.index: (event.tokens, event.nfe) for event in events if isinstance(event, Done)}


asked = st.fixed_dictionaries(
    {
        "text": st.sampled_from(TEXTS),
        "seed": st.integers(0, 3),
        "number": st.integers(1, 3),
        "sampler": st.sampled_from(SAMPLERS),
        "follows": st.booleans(),
    }
)


@given(st.lists(asked, min_size=2, max_size=4), st.integers(1, 8), st.integers(0, 4), st.integers(0, 30))
def test_a_text_is_the_same_whatever_it_shares_a_batch_with(requests, batch_size, leaves, after):
    """Also if one of the others goes away in the middle."""
    toy, heard = Toy(batch_size=batch_size), []

    def hear(number):
        def tell(event):
            heard.append((number, event))
            if len(heard) == after and leaves < len(jobs):
                toy.worker.cancel(jobs[leaves])

        return tell

    jobs = [toy.ask(**request, tell=hear(number))[0] for number, request in enumerate(requests)]
    toy.work()
    for number, request in enumerate(requests):
        alone = Toy()
        _, events = alone.ask(**request)
        alone.work()
        mine = [event for of, event in heard if of == number]
        if jobs[number].gone:
            assert done(mine).items() <= done(events).items()
        else:
            assert done(mine) == done(events)
            assert len(done(mine)) == request["number"]
        steps = [event for event in mine if isinstance(event, Drawn)]
        assert bool(steps) <= request["follows"]


WANTED = ("[MASK:9] a", "ab[MASK:9]", "a [MASK:3] b [MASK:3] c", "a[MASK:2]", "ab [MASK:18]")


@pytest.mark.parametrize("changes", [{}, SETS], ids=["mdlm", "sets"])
def test_a_network_writes_the_same_in_a_batch(changes):
    """In float64, as sums in another order differ there by less than a draw can tell."""
    model = tiny_model(**changes)
    service = served(evolve(model, module=model.module.double()))
    worker = service.worker

    def write(*layouts):
        events = []
        for seed, text in layouts:
            layout = service.text_generator.lay_out(parse(text))
            plan = Plan(layouts=[layout], number=2, sampler=service.experiment.parts["sampler"], seed=seed)
            worker.submit(
                Job(
                    sampler=plan.sampler,
                    seed=seed,
                    begin=lambda job, plan=plan: service.begin(plan, job),
                    tell=events.append,
                )
            )
        turns = 0
        while worker.queue:
            worker.turn()
            turns += 1
        return [event.tokens for event in events], turns

    wanted = [(seed, text) for seed in (1, 2) for text in WANTED]
    together, turns = write(*wanted)
    alone = [write(each) for each in wanted]
    assert sorted(together) == sorted(tokens for each, _ in alone for tokens in each)
    assert turns <= 2


def texts_of(*lengths):
    """Return a job for each length, and its text."""
    layout = Toy().text_generator.lay_out(parse("[MASK]"))
    sampler, texts = SAMPLERS[0], []
    for number, length in enumerate(lengths):
        own = evolve(layout, pieces=((), (0,) * (length - 1)))
        texts.append(
            (
                Job(sampler=sampler, seed=0, begin=list, tell=list),
                WantedText(index=0, number=number, layout=own, lengths=(1,)),
            )
        )
    return texts


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(1, 8), st.booleans(), st.booleans())
@example([40, 61, 60], 8, False, False)
@example([50, 75, 34, 33], 8, True, True)
@example([40, 161, 160, 50], 8, True, False)
def test_a_batch_is_of_the_oldest_text_and_those_of_a_similar_length(lengths, batch_size, once, rewrites):
    toy, waiting = Toy(batch_size=batch_size), texts_of(*lengths)
    toy.worker.text_generator = evolve(toy.text_generator, length=300)
    toy.worker.text_generator.denoiser.predicts_ahead = once
    for job, _ in waiting:
        job.rewrites = rewrites
    ratio = 4 if once and not rewrites else 1.5
    batch = toy.worker._compatible(waiting)
    taken = [text.form[0] for _, text in batch]
    assert batch == [each for each in waiting if each in batch]
    assert batch[0] == waiting[0]
    assert len(batch) <= batch_size
    if len({*taken}) > 1:
        assert max(taken) <= min(300, ratio * max(min(taken), 32))
    for _, text in [each for each in waiting if each not in batch] if len(batch) < batch_size else []:
        together = [*taken, text.form[0]]
        assert len({*together}) > 1
        assert max(together) > min(300, ratio * max(min(together), 32))
    toy.worker.text_generator.denoiser.supports_padding = False
    assert {text.form[0] for _, text in toy.worker._compatible(waiting)} == {lengths[0]}


def test_a_text_is_told_once_it_is_complete():
    toy, sampler = Toy(), Zoo.load().spec("sampler", "left_to_right")
    told = []
    for name, text in (("long", "[MASK:9]"), ("short", "ab[MASK:2]"), ("none", "abc[MASK:1]")):
        toy.ask(text, sampler=sampler, tell=lambda event, name=name: told.append((name, toy.worker.writing, event)))
    toy.worker.turn()
    assert [(name, left) for name, left, event in told if isinstance(event, Done)] == [
        ("none", 2),
        ("short", 1),
        ("long", 0),
    ]
    assert toy.denoiser.calls == 9
    assert [type(event).__name__ for name, _, event in told if name == "short"] == ["Drawn", "Drawn", "Done"]
    # A sampler that may mask a token again is waited for.
    toy, ends = Toy(), []
    job, _ = toy.ask("[MASK:2]", sampler=sampler, follows=False, tell=ends.append)
    job.rewrites = True
    toy.ask("[MASK:9]", sampler=sampler, follows=False, tell=ends.append)
    toy.worker.turn()
    assert [len(event.tokens) for event in ends] == [11, 4]


def test_a_text_that_was_complete_is_not_written_again():
    """If others of its batch fail, one by one is tried again what was not complete."""

    class Late(AncestralSampler):
        name = "late"

        def sample(self, denoiser, tokens, seeds, *, observe=None):
            made = super().sample(denoiser, tokens, seeds, observe=observe)
            if (tokens == 7).any():
                raise UserError("there is an h; leave it out")
            return made

    toy = Toy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atat_zoo_serve.batching.unstructure", str)
        asked = [toy.ask(text, sampler=Late(steps=3)) for text in ("a[MASK:3]", "hh[MASK:3]", "b[MASK:2]")]
    for job, _ in asked:
        job.rewrites = job is asked[1][0]
    toy.work()
    assert [len(done(events)) for _, events in asked] == [1, 0, 1]
    assert [type(event) for _, events in asked for event in events if not isinstance(event, Drawn)] == [
        Done,
        Failed,
        Done,
    ]


def test_who_goes_away_is_evaluated_no_more():
    toy, sampler = Toy(), Zoo.load().spec("sampler", {"use": "entropy", "steps": 4})  # each fills two in a step

    def leave(event):
        toy.worker.cancel(leaving)

    leaving, _ = toy.ask("[MASK:8]", number=3, sampler=sampler, tell=leave)
    events, left = [], []

    def tell(event):
        events.append(event)
        left.append(toy.worker.writing)

    toy.ask("[MASK:8]", seed=1, sampler=sampler, follows=False, tell=tell)
    toy.work()
    assert (toy.denoiser.calls, toy.denoiser.evaluated, left) == (4, 3 + 4, [0])
    assert done(events)[0][1] == 4
    # With nobody left nothing is evaluated: not even the next step.
    for sampler in (SAMPLERS[0], SAMPLERS[3]):
        alone, jobs = Toy(), []
        tell = partial(lambda toy, jobs, event: toy.worker.cancel(*jobs), alone, jobs)
        jobs.append(alone.ask("[MASK:8]", number=3, sampler=sampler, tell=tell)[0])
        alone.work()
        assert alone.denoiser.calls == 1
    # A place among those that wait is free at once.
    full = Toy(waiting=2)
    first, _ = full.ask("[MASK:8]")
    full.ask("[MASK:8]")
    with pytest.raises(BusyError):
        full.ask("[MASK:8]")
    full.worker.cancel(first)
    full.ask("[MASK:8]")


def test_lengths_are_weighed_for_nobody():
    toy = Toy()
    service = Service(
        name="toy",
        about={},
        experiment=None,
        text_generator=toy.text_generator,
        weigher=toy.text_generator,
        worker=toy.worker,
        limits=Limits(batch_size=1),
    )
    layout = toy.text_generator.lay_out(parse("a[MASK:1-4]bcd"))
    plan = Plan(layouts=[layout], number=1, sampler=SAMPLERS[0], seed=0)
    events = []
    job = Job(sampler=SAMPLERS[0], seed=0, begin=lambda job: service.begin(plan, job), tell=events.append)
    toy.worker.submit(job)
    job.gone = True
    toy.worker.turn()
    assert (toy.denoiser.calls, toy.worker.queue) == (1, 0)
    assert isinstance(events[0].error, GoneError)


class Choosy(AncestralSampler):
    """Refuses texts with the letter h."""

    name = "choosy"

    def sample(self, denoiser, tokens, seeds, *, observe=None):
        if (tokens == 7).any():
            raise UserError("there is an h; leave it out")
        return super().sample(denoiser, tokens, seeds, observe=observe)


def test_who_fails_fails_alone(monkeypatch):
    toy, sampler = Toy(), Choosy(steps=3)
    monkeypatch.setattr("atat_zoo_serve.batching.unstructure", str)
    _, good = toy.ask("a[MASK:3]", sampler=sampler)
    _, bad = toy.ask("h[MASK:3]", sampler=sampler, number=2)
    _, better = toy.ask("b[MASK:3]", sampler=sampler)
    toy.work()
    assert len(done(good)) == len(done(better)) == 1
    (failed,) = bad
    assert isinstance(failed, Failed)
    assert str(failed.error) == "there is an h; leave it out"


def test_the_thread_writes_what_it_is_told_of_and_ends():
    toy = Toy()
    told = queue.SimpleQueue()
    toy.worker.start()
    toy.ask("[MASK:8]", follows=False, tell=told.put)
    assert isinstance(told.get(timeout=30), Done)
    assert toy.worker.alive
    toy.worker.close()
    assert not toy.worker.alive


def test_a_job_is_gone_when_the_worker_stops():
    """What begins, or is being written, then ends at its next evaluation."""
    toy, ends = Toy(), []

    def stop(event):
        ends.append(event)
        if isinstance(event, Drawn):
            toy.worker.stop()

    writing, _ = toy.ask("[MASK:8]", tell=stop)
    waiting, told = toy.ask("[MASK:8]", sampler=SAMPLERS[2])
    toy.worker.turn()
    assert (writing.gone, waiting.gone, toy.denoiser.calls, toy.worker.queue) == (True, True, 1, 0)
    assert [type(event.error) for event in (ends[-1], *told)] == [StoppedError, StoppedError]
    with pytest.raises(StoppedError):
        toy.ask("[MASK:8]")
