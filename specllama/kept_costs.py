"""The cost table of a decoder's pair: recalled when models are loaded, kept when they are freed."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import psutil

from specllama.hub.paths import data_dir
from specllama.llama import library
from specllama.llama.context import threads_of
from specllama.llama.model import is_offloaded
from specllama.machine import cpu_name
from specllama.options import ModelOptions
from specllama.scheduling.scheduler import Scheduler
from specllama.scheduling.table import CostTable, Place, Tables

_LEAST_DECODES = 32


def tables() -> Tables:
    """The tables of this user."""
    return Tables(data_dir() / "costs")


def place_of(target: Path, draft: Path | None, options: ModelOptions) -> Place:
    """Where the table of a pair is kept: by machine, build, model files and settings."""
    devices = [device["description"] for device in library.devices()]
    return Place.of(
        ", ".join([cpu_name(), f"{os.cpu_count()} cores", *devices]),
        _build_and_features(),
        target,
        draft,
        _settings(options),
    )


def _build_and_features() -> str:
    features = hashlib.sha256(library.system_info().encode()).hexdigest()[:8]
    return f"{library.build()} {features}"


def _settings(options: ModelOptions) -> dict[str, object]:
    """The settings that costs depend on, as they take effect."""
    return {
        **threads_of(options),
        "gpu_layers": options.gpu_layers,
        "draft_gpu_layers": options.draft_gpu_layers,
        "main_gpu": options.main_gpu,
        "tensor_split": list(options.tensor_split),
        "device": options.device,
        "draft_device": options.draft_device,
        "exact": options.exact,
        **options.attention(is_offloaded(options.gpu_layers, options.device)),
    }


def exact_range(target: Path, draft: Path | None, options: ModelOptions) -> int | None:
    """The most tokens that a calibration of this pair found to be bit-exact in exact mode.

    Calibrations measure that whether or not they run in exact mode. None where nobody did.
    """
    for exact in (True, False):
        with contextlib.suppress(OSError):  # recalling the table tells of that
            place = place_of(target, draft, replace(options, exact=exact))
            table, _ = tables().load(place)
            if table is not None and table.exact_batch is not None:
                return table.exact_batch
    return None


def stamped(table: CostTable) -> CostTable:
    """A table with the time and the load of now."""
    load = round(psutil.getloadavg()[0], 2)
    return replace(table, date=datetime.now().isoformat(timespec="minutes"), load=load)


class KeptCosts:
    """What a scheduler starts from, and what of it is kept for the next session.

    Attributes:
        place: where the table of the current pair is.
        table: what was found there, None for nothing to believe.
    """

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None
        self.place: Place | None = None
        self.table: CostTable | None = None

    def recall(
        self, scheduler: Scheduler, target: Path, draft: Path | None, options: ModelOptions
    ) -> list[str]:
        """Keep what was learned of the pair before, and start from what is known of this one.

        Returns:
            A warning where a table was found that cannot be believed.
        """
        self.close()
        try:
            self.place = place_of(target, draft, options)
        except OSError as error:
            self.place, self.table = None, None
            scheduler.recall(CostTable())
            return [f"No cost table is kept: {error.filename} cannot be read ({error.strerror})."]
        self.table, warning = tables().load(self.place)
        self._scheduler = scheduler
        scheduler.recall(self.table or CostTable())
        return [warning] if warning else []

    def close(self) -> None:
        """Write what was learned since, if it differs materially from what was kept."""
        learned, self._scheduler = self._scheduler, None
        if learned is None or self.place is None:
            return
        if learned.costs.n_decodes >= _LEAST_DECODES and learned.changed:
            # a disk that cannot be written costs another session's learning, nothing more
            with contextlib.suppress(OSError):
                tables().save(self.place, stamped(learned.table()))

    def replace(self, table: CostTable) -> None:
        """Keep a calibrated table, and go on from it.

        Raises:
            OSError: it cannot be written.
        """
        self.table = stamped(table)
        if self._scheduler is not None:
            self._scheduler.recall(self.table)
        if self.place is not None:
            tables().save(self.place, self.table)
