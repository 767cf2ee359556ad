"""The machine that is measured, in words and numbers.

Owns: these facts. Must not know what is measured on it.
"""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from specviz.distill.card import cpu_name


def machine() -> dict[str, Any]:
    """Processor, threads, GPU, system, and how busy it is now."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "system": f"{platform.system()} {platform.machine()}",
        "load_at_start": load,
    }
