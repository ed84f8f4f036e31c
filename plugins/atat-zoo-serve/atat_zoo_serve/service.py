"""A model that is served: what is said of it, and what plans and writes its texts."""

from __future__ import annotations

import time
from typing import Any

import attrs

from atat_zoo.experiment import Experiment
from atat_zoo.generation.model import Model
from atat_zoo.modeling.diffusion.precision import Precision
from atat_zoo.registry.spec import unstructure
from atat_zoo_serve import Limits
from atat_zoo_serve.batching import Worker
from atat_zoo_serve.planning import Planner


@attrs.frozen(kw_only=True, eq=False)
class Service:
    """A model by its name.

    `key` is what a request must have, `here` whether only this machine's are answered, and `cors` the origins of pages
    that may ask from a browser.
    """

    name: str
    about: dict[str, Any]  # JSON
    planner: Planner
    worker: Worker
    limits: Limits
    key: str | None = None
    here: bool = True
    cors: tuple[str, ...] = ()

    @classmethod
    def of_model(
        cls,
        name: str,
        model: Model,
        experiment: Experiment | None = None,
        *,
        limits: Limits | None = None,
        precision: Precision = "fp32",
        compile: bool = False,
        **access: Any,
    ) -> Service:
        """Return the service of a model, with the sampler and the guidance of an experiment, its own if None.

        In another precision than fp32 the rounding of a network may change a text with what shares its batch.
        """
        limits, experiment = limits or Limits(), experiment or model.experiment
        parts: dict[str, Any] = dict(experiment.parts)
        weigher = model.writer(precision, compile)
        writer = parts["guidance"].guide(weigher)
        for number in (1, 2) if compile else ():  # so that no request waits for it: once for its size, once for any
            writer.write(parts["sampler"], number=number)
        worker = Worker(writer, batch_size=limits.batch_size, waiting=limits.waiting)
        planner = Planner(experiment=experiment, writer=writer, weigher=weigher, limits=limits, words=worker.words)
        about = {
            **{"id": name, "object": "model", "created": int(time.time()), "owned_by": "atat_zoo"},
            **{"step": model.step, "length": writer.length, "objective": parts["objective"].name},
            **{kind: unstructure(parts[kind]) for kind in ("sampler", "guidance")},
            "limits": attrs.asdict(limits),
        }
        return cls(name=name, about=about, planner=planner, worker=worker, limits=limits, **access)
