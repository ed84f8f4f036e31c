"""A profiler of training steps, with a table of phases, a table of operations, and a trace for chrome://tracing.

RUN/profile/trace.json   all operations of the profiled steps, for Perfetto or Chrome
RUN/profile/steps.json   seconds of each phase, step by step
"""

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from composer import Callback, Logger, State
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from atat_zoo.experiment.runs import write_json
from atat_zoo.system.devices import synchronize

WARM = 3  # steps before the first profiled step, in which memory is allocated and code is compiled
# The phase that ends with each of Composer's events. Composer updates the weights after `after_train_batch`.
PHASES = {
    "after_dataloader": "waiting for data",
    "before_forward": "between phases",
    "after_loss": "forward and loss",
    "before_backward": "between phases",
    "after_backward": "backward",
    "after_train_batch": "between phases",
    "batch_end": "optimizer, EMA, logs",
}
_OPERATIONS = 12


class Profile(Callback):
    """A callback that profiles `steps` steps after the first `WARM` and writes the results, while training continues.

    During profiling, the callback waits for the device at the end of each phase, so that times are attributed to the
    right phase. This makes a step slightly slower.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps, self.done = folder, steps, 0
        self.rows: list[dict[str, float]] = []
        self.operations: list[tuple[str, float, int]] = []  # name, self time in seconds, calls
        self._since = 0.0
        self._gpu, self._device = False, torch.device("cpu")

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start the profiler with its warm-up steps."""
        self._gpu, self._device = state.device.name == "gpu", next(state.model.parameters()).device
        when = schedule(wait=0, warmup=WARM, active=self.steps, repeat=1)
        self._profiler = profile(activities=activities(self._gpu), schedule=when, on_trace_ready=self._write)
        self._profiler.start()

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """Start timing a training step."""
        if self._measures:
            self.rows.append(dict.fromkeys(PHASES.values(), 0.0))
            self._since = self._now()

    def run_event(self, event: Any, state: State, logger: Logger) -> None:
        """Add the time since the last event to the phase that this event ends."""
        super().run_event(event, state, logger)
        if self.rows and self._measures and (phase := PHASES.get(event.value)) is not None:
            now = self._now()
            self.rows[-1][phase] += now - self._since
            self._since = now
        if event.value == "batch_end":
            self.done += 1
            self._profiler.step()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Stop the profiler if training ended before the profile was complete."""
        if self.done < WARM + self.steps:
            self._profiler.on_trace_ready = None
            self._profiler.stop()

    @property
    def _measures(self) -> bool:
        return self._profiler.current_action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)

    def _write(self, profiler: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        profiler.export_chrome_trace(str(self.folder / "trace.json"))
        self.operations = operations(profiler, self._gpu)
        write_json(self.folder / "steps.json", {"phases": self.rows, "operations": self.operations[:_OPERATIONS]})

    def lines(self) -> list[str]:
        """Return the two tables as lines of text, or a single line if training was too short."""
        if not self.operations:
            return [
                f"nothing was profiled: {WARM} warm-up steps and {self.steps} more are needed, but only {self.done} ran"
            ]
        total = statistics.fmean(sum(row.values()) for row in self.rows)
        found = [f"one step takes {1000 * total:.1f} ms (mean of {len(self.rows)} steps):"]
        for phase in dict.fromkeys(PHASES.values()):
            seconds = statistics.fmean(row[phase] for row in self.rows)
            found.append(f"  {phase:<30}{1000 * seconds:>10.1f} ms{seconds / total:>8.1%}")
        everything = sum(seconds for _, seconds, _ in self.operations) or 1.0
        found.append("operations, by self time:")
        for name, seconds, calls in self.operations[:_OPERATIONS]:
            each = 1000 * seconds / len(self.rows)
            found.append(f"  {name[:44]:<46}{each:>8.1f} ms/step{seconds / everything:>8.1%}{calls:>8} calls")
        return [*found, f"open the trace {self.folder / 'trace.json'} in https://ui.perfetto.dev"]

    def _now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()


def activities(gpu: bool) -> list[ProfilerActivity]:
    """Return the activities to profile: the CPU and, if `gpu`, the GPU."""
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]


def operations(profiler: Any, gpu: bool) -> list[tuple[str, float, int]]:
    """Return name, self time in seconds and calls of each operation, or on a GPU of each kernel; the longest first."""
    found = []
    for average in profiler.key_averages():
        # On a GPU, only kernels: the operators that launch them report the same time again.
        if average.device_type == (DeviceType.CUDA if gpu else DeviceType.CPU):
            if average.is_user_annotation and (gpu or average.key.startswith("ProfilerStep")):
                continue
            own = average.self_device_time_total if gpu else average.self_cpu_time_total
            found.append((average.key, own / 1e6, average.count))
    return sorted(found, key=lambda operation: -operation[1])
