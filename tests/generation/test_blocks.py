"""Guidance of a model that reads block by block: what is kept of the text changes nothing."""

import pytest
import torch

from atat_zoo.data.tokenizers import CharactersTokenizer
from atat_zoo.generation.guidance import ClassifierFreeGuidance, ClassifierGuidance, TokenBiasGuidance
from atat_zoo.generation.samplers.published import CombinationSampler
from atat_zoo.generation.samplers.semi_autoregressive import SemiAutoregressiveSampler
from atat_zoo.generation.writer import Writer
from tests.generation.samplers.exactness import random_model
from tests.generation.test_classifier import bag

L, V = 12, 27
GREEDY = CombinationSampler(order="left_to_right", pace="one_at_a_time", draw={"use": "categorical", "temperature": 0})


LETTERS = CharactersTokenizer().train(lambda: iter(()))


def writer(objective):
    return Writer(denoiser=random_model(objective, V, L).denoiser(), tokenizer=LETTERS, length=L)


@pytest.mark.parametrize("objective", ["autoregressive", {"use": "block", "size": 3}], ids=["autoregressive", "block"])
@pytest.mark.parametrize(
    "guidance",
    [
        TokenBiasGuidance(words=("abc", "de"), strength=60.0, ban=("e d",)),
        ClassifierGuidance(classifier=bag(), method="first_order"),
        ClassifierFreeGuidance(condition="cab", empty="dropped"),
    ],
    ids=["token_bias", "classifier", "classifier_free"],
)
def test_the_text_is_that_of_the_whole_read_anew(objective, guidance):
    guided = guidance.guide(writer(objective))
    z = torch.full((3, L), V)
    z[:, :3] = torch.tensor(LETTERS.encode("cab"))
    z[1, 3] = 5
    # Greedy, so that no draw hides a difference.
    anew = guided.fill(GREEDY, z)
    kept = guided.fill(SemiAutoregressiveSampler(within=GREEDY), z)
    assert torch.equal(kept.tokens, anew.tokens)
    assert not torch.equal(anew.tokens, writer(objective).fill(GREEDY, z).tokens)


def test_beyond_the_training_length_the_condition_goes_out_of_sight():
    guided = ClassifierFreeGuidance(condition="cab", empty="dropped").guide(writer({"use": "block", "size": 3}))
    z = torch.full((2, 2 * L), V)
    z[:, :3] = torch.tensor(LETTERS.encode("cab"))
    assert (guided.fill(SemiAutoregressiveSampler(within=GREEDY), z).tokens < V).all()
    decoder = guided.denoiser.begin(2, L)
    decoder.read(z)
    assert decoder.text.shape == (2, L)  # as many as the network sees


@pytest.mark.slow
def test_a_ban_holds_across_blocks():
    banned = TokenBiasGuidance(words=(), tokens=tuple(LETTERS.encode(" ab")), strength=20.0, ban=("ab", "a"))
    guided = banned.guide(writer({"use": "block", "size": 3}))
    made = guided.fill(SemiAutoregressiveSampler(), torch.full((30, 2 * L), V))
    words = " ".join(LETTERS.decode(ids) for ids in made.tokens.tolist()).split()
    assert words
    assert not {"ab", "a"} & set(words)
