"""Shared set-up: small models run best on one thread, and the toy models are built once."""

import pytest
import torch
import toys

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny():
    return toys.tiny()


@pytest.fixture(scope="session")
def family(tiny):
    """Drafts for TINY by name: itself, itself plus noise (they agree partly), and another model altogether."""
    return {
        "self": tiny,
        "noisy .005": toys.noisy(tiny, 0.005),
        "noisy .01": toys.noisy(tiny, 0.01),
        "other": toys.other(),
    }
