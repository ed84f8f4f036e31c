"""`atat data`: download text, and build and inspect token shards, without importing torch."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import click

from atat_zoo.cli.arguments import options
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.data import shard_manifest
from atat_zoo.evaluation.results.format import number
from atat_zoo.experiment import load
from atat_zoo.system.errors import UserError
from atat_zoo.system.machine import cores

_TOLD = ("size", "licence", "cite")


@click.group()
def data() -> None:
    """Download corpora, build token shards, and inspect them."""


@data.command()
@click.argument("name", required=False)
@options("json")
def get(name: str | None, as_json: bool) -> None:
    """Download NAME: a corpus or tokenizer that ships with atat_zoo, or one that your own TOML file describes. Without
    NAME, list those that ship.

    Existing files are verified and not downloaded again. URLs and hashes are recorded in the folder of the files.
    """
    from atat_zoo.data.corpora import text_source

    if name is None:
        known = text_source.every()
        if as_json:
            print_json([{"name": each.name} | {key: getattr(each.source, key) for key in _TOLD} for each in known])
        else:
            table(["name", *_TOLD], [[each.name, *(getattr(each.source, key) for key in _TOLD)] for each in known])
        return
    from atat_zoo.data.corpora.text_source import get as get_text

    found = text_source.read(name)
    record = get_text(found, lambda text: click.echo(text, err=as_json))
    if as_json:
        print_json(record)
        return
    files = record["files"].values()
    size = _size(sum(file["bytes"] for file in files))
    click.echo(
        f"{found.name} is in {found.folder}: {number(len(files), 'file')}, {size}, downloaded on {record['date']}"
    )
    click.echo(f"licence: {found.source.licence}\ncite: {found.source.cite}")


@data.command()
@click.argument("experiment")
@options("overrides")
@click.option(
    "--processes", type=click.IntRange(1, 1024), help="Processes that tokenize the text (default: one per core)."
)
@click.option("--slice", "part", metavar="I/N", help="Tokenize slice I of N, on any machine; run --join afterwards.")
@click.option("--join", is_flag=True, help="Build the shards from all slices.")
@click.option("--dry-run", is_flag=True, help="Estimate disk space and time without building anything.")
@options("json")
def build(
    experiment: str,
    overrides: tuple[str, ...],
    processes: int | None,
    part: str | None,
    join: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build the shards for EXPERIMENT if they do not exist yet. An interrupted build can be resumed.

    The shards are byte-identical for any --processes and --slice.
    """
    from atat_zoo.data.build import Throughput, estimate
    from atat_zoo.data.build import build as build_shards
    from atat_zoo.data.slices import Slice, encode_slice
    from atat_zoo.data.slices import join as join_slices

    if part and join:
        raise UserError("--slice and --join cannot be combined; encode every slice first, then run --join")
    own, loaded = Slice.named(part) if part else None, load(experiment, overrides)
    processes, throughput = processes or cores(), Throughput()
    folder: Path | None = None
    with Bars(silent=as_json) as bars:
        how: dict[str, Any] = {"progress": bars.building, "processes": processes, "throughput": throughput}
        share = 1 / own.of if own else 1.0
        likely = None if join else estimate(loaded, share=share, processes=processes, progress=bars.building)
        if likely:
            bars.message(
                f"about {_size(likely.text)} of text: {_size(likely.shards)} of shards in {loaded.data.root} "
                f"({_size(likely.free)} free), and {_clock(likely.seconds)} to encode {'this slice ' if own else ''}"
                f"with {processes} process{'es' if processes > 1 else ''}"
            )
        elif dry_run:
            bars.message("nothing to estimate: no text of known size is left to encode")
        if not dry_run and join:
            folder = join_slices(loaded, progress=bars.building)
        elif not dry_run:
            folder = encode_slice(loaded, own, **how) if own else build_shards(loaded, **how)
    if as_json:
        speed = attrs.asdict(throughput) | {"megabytes_per_core_second": throughput.per_core}
        print_json({"folder": folder and str(folder), "estimate": likely and attrs.asdict(likely), "throughput": speed})
        return
    if throughput.bytes:
        megabytes, seconds = throughput.bytes / 1e6, throughput.seconds
        click.echo(
            f"encoded {megabytes:,.1f} MB of text in {_clock(seconds)}: {megabytes / seconds:.2f} MB/s, "
            f"{throughput.per_core:.2f} MB/s per busy core"
        )
    if folder is not None:
        for line in () if own else shard_manifest.load(folder).left_out():
            click.echo(line)
        spec = loaded.data
        click.echo(f"the {f'slice {part} is' if own else 'shards are'} in {folder}")
        click.echo(f"in these shards, {joints(spec.special_tokens, spec.packing, spec.format)}")


@data.command()
@click.argument("experiment")
@options("overrides")
@click.option(
    "-n",
    "--num-samples",
    "number",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of sequences to print.",
)
@options("json")
def show(experiment: str, overrides: tuple[str, ...], number: int, as_json: bool) -> None:
    """Print the first training sequences of EXPERIMENT as they are stored: with special tokens, before transforms.

    Builds the shards first if they do not exist yet. In dialogues, « and » enclose the tokens that the loss includes.
    """
    from atat_zoo.cli.rows import first_rows
    from atat_zoo.data.build import build as build_shards

    loaded = load(experiment, overrides)
    with Bars(silent=as_json) as bars:
        folder = build_shards(loaded, progress=bars.building)
    rows = first_rows(folder, loaded.parts["tokenizer"].load(folder), number)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        click.echo(row["text"].replace("\n", "\\n"))


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.1f} GB"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


@data.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--full", is_flag=True, help="Verify the SHA-256 of every shard.")
@options("json")
def info(folder: Path, full: bool, as_json: bool) -> None:
    """Describe the shards in FOLDER, and verify that the folder is complete."""
    shards = shard_manifest.verify(folder, full=full)
    if as_json:
        print_json(attrs.asdict(shards))
        return
    click.echo(f"{folder}: {shards.corpus['use']}, {shards.tokenizer['use']} with {shards.vocabulary_size:,} tokens")
    what = "sequences" if shards.form == "text" else "dialogues, with the loss on the assistant's tokens, in sequences"
    click.echo(f"{what} of {shards.length} tokens as {shards.dtype}; special tokens: {shards.special}")
    left = "" if shards.rows == "document" else f"; remainder at the end of each split: {shards.remainder}"
    click.echo(f"packing: {shards.rows}{left}; built for {shards.lanes} lanes")
    click.echo(joints(shards.special, shards.rows, shards.form))
    counted = ("documents", "sequences", "tokens", "dropped", "padded", "characters", "bytes", "words")
    rows = [
        [name, *(f"{getattr(split, key):,}" for key in counted), str(len(split.shards))]
        for name, split in shards.splits.items()
    ]
    table(["split", *counted, "shards"], rows)
    for line in shards.left_out():
        click.echo(line)
    if full:
        click.echo("the SHA-256 of every shard matches the manifest")


def joints(special: str, rows: str, form: str) -> str:
    """Return a clause on how special tokens separate documents, given `[data]` special_tokens, packing and format."""
    if form == "chat":
        return "dialogues have the special tokens from their chat template"
    end = "each document ends with EOS"
    if rows == "document":
        said = {"none": "without special tokens", "document": "followed by EOS"}
        return f"each sequence holds the beginning of one document, {said.get(special, 'between BOS and EOS')}"
    said = {
        "none": "documents are concatenated without a separator "
        '(set data.special_tokens = "document" to end each with EOS)'
    }
    said |= {"document": end, "both": f"{end}, and each sequence begins with BOS and ends with EOS"}
    return said.get(
        special,
        "documents are concatenated without a separator, and each sequence begins with BOS and ends with EOS",
    )
