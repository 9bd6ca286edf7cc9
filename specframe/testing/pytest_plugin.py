"""Fixtures for tests of drafters; pytest finds them where specframe is installed.

Imports nothing heavy: pytest loads this in every run, whatever it tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from specframe.testing import Certificate, TableTarget


@pytest.fixture
def table_target() -> Callable[..., TableTarget]:
    """Return a function that makes a target of fixed random rows; see ``specframe.testing.random_table``."""
    from specframe.testing import random_table

    return random_table


@pytest.fixture
def certify_drafter() -> Callable[..., Certificate]:
    """Return a function that certifies a drafter and fails the test if it is not certified.

    It takes what ``specframe.testing.certify`` takes, runs the quick plan unless another is given, and returns the
    certificate.
    """
    from specframe.testing import QUICK, certify

    def certify_drafter(make_drafter: Callable[..., Any], **options: Any) -> Certificate:
        certificate = certify(make_drafter, **{"plan": QUICK, **options})
        if not certificate.is_certified:
            findings = "\n".join(f"  {check.name}: {check.told}" for check in certificate.failures)
            pytest.fail(f"{certificate.sentence}\n{findings}", pytrace=False)
        return certificate

    return certify_drafter
