"""What tests compare us with: Python's torch (and torchrun), transformers, safetensors, TensorBoard; on the CPU.

Peers run in a process of their own: `subprocess.run([sys.executable, …], env=peers_environment())`. torchrun is
`sys.executable -m torch.distributed.run`.
"""

import os
import sys
import unittest

from tests.support.wheels import wheels_folder


def why_no_peers():
    """Why a test with peers has to be skipped; None where they are there."""
    if sys.version_info[:2] != (3, 11):
        return "the pinned peers are for Python 3.11"
    needed = wheels_folder("libtorch") / "torch/__init__.py", wheels_folder("peers") / "cuda"
    if not all(path.exists() for path in needed):
        return "no peers in the cache; source tools/setup.sh && need_peers"
    return None


def need_peers():
    """Skips the test where there are no peers."""
    if reason := why_no_peers():
        raise unittest.SkipTest(reason)


def why_no_newer_torch():
    """Why a test with the torch of tools/newer_torch.txt has to be skipped; None where it is there."""
    folder = wheels_folder("newer_torch")
    if not all(path.exists() for path in (folder / "torch/__init__.py", folder / "cuda")):
        return "no newer torch in the cache; source tools/setup.sh && need_newer_torch"
    return None


def peers_environment():
    """This process's environment, in which Python finds the peers and they find neither a GPU nor the network."""
    return _environment(wheels_folder("libtorch"), wheels_folder("peers") / "cuda")


def newer_torch_environment():
    """The same with the newer torch."""
    return _environment(wheels_folder("newer_torch"), wheels_folder("newer_torch") / "cuda")


def why_no_frameworks():
    """Why a test with the frameworks of tools/frameworks.txt has to be skipped; None where they are there."""
    if reason := why_no_peers() or why_no_newer_torch():
        return reason
    folder = wheels_folder("frameworks")
    if not all((folder / name).is_dir() for name in ("megatron", "torchtitan", "deepspeed")):
        return "no frameworks in the cache; source tools/setup.sh && need_frameworks"
    return None


def frameworks_environment():
    """The environment of the newer torch, in which Python finds the frameworks, too."""
    environment = newer_torch_environment()
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(wheels_folder("frameworks"))])
    return environment


def _environment(torch, cuda):
    paths = {"PYTHONPATH": [torch, wheels_folder("peers")], "LD_LIBRARY_PATH": [cuda]}
    joined = {name: os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get(name)])])
              for name, folders in paths.items()}
    return {**os.environ, **joined, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1"}
