"""Limits of control groups, of both versions, also where the process is in a group below the mounted root."""

import pytest

from rlrun.machine.cgroups import cores_allowed, memory_left


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def process(tmp_path):
    def of(*lines):
        (tmp_path / "cgroup").write_text("".join(f"{line}\n" for line in lines))
        return tmp_path / "mount", tmp_path / "cgroup"

    return of


def test_the_tightest_group_above_the_process_counts_in_version_2(tmp_path, process):
    mount = tmp_path / "mount"
    write(mount / "slurm", memory__max=1000, memory__current=300, memory__stat="anon 1\ninactive_file 50", cpu__max="150000 100000")
    write(mount / "slurm" / "step", memory__max=5000, memory__current=10, memory__stat="inactive_file 0", cpu__max="max 100000")
    where = process("0::/slurm/step")
    assert (memory_left(*where), cores_allowed(*where)) == (750, 1.5)
    assert (memory_left(*process("0::/")), cores_allowed(*process("0::/"))) == (None, None), "the root has no limit here"
    write(mount, memory__max=900, memory__current=800, memory__stat="inactive_file 0", cpu__max="50000 100000")
    assert (memory_left(*process("0::/")), cores_allowed(*process("0::/"))) == (100, 0.5), "a container's root has"


def test_version_1_has_a_folder_for_each_controller(tmp_path, process):
    mount = tmp_path / "mount"
    write(mount / "memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=5, memory__stat="total_inactive_file 0")
    write(mount / "memory" / "job", memory__limit_in_bytes=4000, memory__usage_in_bytes=1000, memory__stat="total_inactive_file 7")
    write(mount / "cpu,cpuacct" / "job", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    write(mount / "cpu,cpuacct", cpu__cfs_quota_us=300000, cpu__cfs_period_us=100000)
    lines = ["9:name=systemd:/", "4:memory:/job", "3:cpu,cpuacct:/job"]
    assert (memory_left(*process(*lines)), cores_allowed(*process(*lines))) == (3007, 3.0)
    hidden = process("4:memory:/docker/abc")
    assert memory_left(*hidden) is None, "a folder of the host that the container does not see"
    assert memory_left(mount, tmp_path / "nothing") is None
