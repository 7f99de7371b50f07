"""Reading the processor's properties from Linux."""

import pytest

from rlrun.machine import processor
from rlrun.machine.processor import cpu_flags

TWO_CORES = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9R45: a core
flags\t\t: fpu avx2 avx512_bf16
power management:

processor\t: 1
vendor_id\t: GenuineIntel
flags\t\t: fpu
"""


@pytest.fixture(autouse=True)
def asked_anew():
    processor.processor.cache_clear()
    yield
    processor.processor.cache_clear()


def test_the_first_core_is_read(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(TWO_CORES)
    monkeypatch.setattr(processor, "PLACE", str(tmp_path / "cpuinfo"))
    facts = processor.processor()
    assert (
        facts["vendor_id"] == "AuthenticAMD"
        and facts["model name"] == "AMD EPYC 9R45: a core"
        and facts["power management"] == ""
    )
    assert cpu_flags() == {"fpu", "avx2", "avx512_bf16"}


def test_where_there_is_no_such_file_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "PLACE", str(tmp_path / "none"))
    assert processor.processor() == {} and cpu_flags() == set()
