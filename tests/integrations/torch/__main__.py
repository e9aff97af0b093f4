"""Runs tests of isobar-torch in the environment of the pinned torch: python3 -m tests.integrations.torch NAME…

ISOBAR_NEWER_TORCH=1 takes the torch of tools/newer_torch.txt.
"""

import os
import sys

from tests.support.peers import newer_torch_environment, peers_environment, why_no_newer_torch, why_no_peers
from tests.support.wheels import ROOT, wheels_folder


def main():
    """Becomes unittest of the named tests."""
    newer = os.environ.get("ISOBAR_NEWER_TORCH") == "1"
    reason = why_no_peers() or (why_no_newer_torch() if newer else None)
    if reason:
        print(f"OK (skipped=1): {reason}")
        return
    environment = newer_torch_environment() if newer else peers_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "integrations/torch"), environment["PYTHONPATH"]])
    # Compiling torch's sources takes four times as long as importing it.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(wheels_folder("peers").parent / "pycache")
    names = [f"tests.integrations.torch.{name}_test" for name in sys.argv[1:]]
    os.execve(sys.executable, [sys.executable, "-m", "unittest", "-v", *names], environment)


main()
