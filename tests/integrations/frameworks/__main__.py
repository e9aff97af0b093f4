"""Runs tests of isobar convert with the frameworks themselves: python3 -m tests.integrations.frameworks NAME…"""

import os
import sys

from tests.support.peers import frameworks_environment, why_no_frameworks
from tests.support.wheels import wheels_folder


def main():
    """Becomes unittest of the named tests."""
    if reason := why_no_frameworks():
        print(f"OK (skipped=1): {reason}")
        return
    environment = frameworks_environment()
    # Compiling the sources takes longer than importing them.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(wheels_folder("peers").parent / "pycache")
    environment.update(DS_ACCELERATOR="cpu", PYTHONWARNINGS="ignore")
    names = [f"tests.integrations.frameworks.{name}_test" for name in sys.argv[1:]]
    os.execve(sys.executable, [sys.executable, "-m", "unittest", "-v", *names], environment)


main()
