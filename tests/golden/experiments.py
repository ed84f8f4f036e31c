"""The tiny experiments of the golden record: one of every objective, with every optimizer and schedule between them."""

import random

from tests.tiny import lines

# Everything that changes the arithmetic is stated, so that no default can move a number unseen.
BASE = """
name = "golden"
seed = 5
corpus = {use = "files", train = ["corpus/train.txt"], validation = ["corpus/validation.txt"], document = "line"}
tokenizer = "bytes"
backbone = {use = "dit", layers = 1, width = 32, heads = 2, max_length = 32, dropout = 0.1}
data.root = "shards"
data.length = 16
data.special_tokens = "none"
data.sequences_per_member = 8
data.sequences_per_shard = 32
data.lanes = 4
optimizer = {learning_rate = 3e-3}
schedule = {warmup_steps = 4}
evaluation = {sequences = 8, mask_samples = 2, samples = 0}
sampler = {use = "ancestral", steps = 4}
[train]
steps = 20
batch_size = 8
microbatch_size = 4
precision = "fp32"
device = "cpu"
log_every = 1
save_every = 20
"""

# A run with all that has a state: a learned estimator, masking by a running mean, a curriculum that adapts.
EVERYTHING = [
    'objective={use="mdlm", weight="simple", correction="horvitz_thompson"}',
    'estimator={use="hybrid", learned={use="transformer", layers=1, width=32, heads=2}}',
    'masking={use="position", bias="running"}',
    'target={use="difficulty", scale="running"}',
    "curriculum.use=dynamic",
    "train.ema_decay=0.9",
    'optimizer={use="muon", learning_rate=3e-3}',
]
LEARNED = 'estimator={use="transformer", layers=1, width=32, heads=2}'

# name -> what it says besides `BASE`
RUNS: dict[str, list[str]] = {
    "mdlm": ['schedule={use="cosine", warmup_steps=4}', "optimizer.weight_decay=0.01"],
    "everything": EVERYTHING,
    "atat": [
        'objective={use="mdlm", weight="simple", correction="horvitz_thompson"}',
        LEARNED,
        "masking.use=importance",
        "mask_drawing.use=systematic",
        'curriculum={use="three_stage", sharpness=0.5, warmup_steps=1000}',
        'schedule={use="linear", warmup_steps=4, min_lr_ratio=0.1}',
        "backbone.time_conditioning=true",
        "noise.use=log_linear",
    ],
    "autoregressive": ["objective.use=autoregressive", "sampler.use=left_to_right", "optimizer.betas=[0.9, 0.98]"],
    "block": ['objective={use="block", block_size=4, weight="simple"}', "sampler.use=left_to_right"],
    "sedd": ["objective.use=sedd", "noise.use=geometric"],
    "d3pm": ['objective={use="d3pm", weight="simple"}', "train.max_grad_norm=0"],
    "mlm": ["objective.use=mlm"],
    "adaptive_importance": ['objective={use="adaptive", weight="simple"}', LEARNED, "sampler.use=learned_order"],
    "adaptive_position": [
        'objective={use="adaptive", bias="left_to_right", strength=2.0}',
        "sampler.use=learned_order",
    ],
}


def write_corpus(folder):
    """Write the text that all of them read: 200 lines of twelve words, drawn from twelve."""
    draw = random.Random(0)
    (folder / "corpus").mkdir()
    for split, count in (("train", 200), ("validation", 20)):
        (folder / "corpus" / f"{split}.txt").write_text(lines(count, draw))
