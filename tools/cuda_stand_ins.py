"""Makes stand-ins for the NVIDIA libraries that a LibTorch for CUDA is linked to and that this machine lacks.

`import torch` loads cuBLAS, cuDNN and eight others, 2 GB in all, none of which a program on a CPU calls. A stand-in has
the name and version of its library; each of its functions returns 1, an error.
"""

import argparse
import os
import pathlib
import re
import subprocess

NVIDIA = re.compile(r"\blib(?:cu|nccl|nvshmem)[\w.]*")
FUNCTION = re.compile(r"^(?:cu|nccl|nvshmem)\w+", re.MULTILINE)


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libtorch", type=pathlib.Path, help="folder that contains torch/lib and nvidia")
    parser.add_argument("folder", type=pathlib.Path, help="folder to create for the stand-ins")
    arguments = parser.parse_args()

    users = sorted(map(str, (arguments.libtorch / "torch/lib").glob("libtorch*.so")))
    present = {path.name for path in arguments.libtorch.glob("nvidia/**/lib*.so*")}
    dynamic = output_of("readelf", "--dynamic", "--version-info", "--wide", *users)
    # Version of each library's symbols; a library without one uses its own name.
    versions = dict(re.findall(r"File: (\S+) .*\n.*Name: (\S+)", dynamic))
    missing = {name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) if NVIDIA.match(name)} - present
    names = sorted(set(FUNCTION.findall(output_of("nm", "--dynamic", "--undefined-only", "--format=posix", *users))))
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names)

    fresh = arguments.folder.with_name(f"{arguments.folder.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    script = fresh / "versions"
    for library in sorted(missing):
        script.write_text(f"{versions.get(library, library)} {{ *; }};\n")
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library}", f"-Wl,--version-script={script}",
                        "-o", str(fresh / library), "-xc", "-"], input=source, text=True, check=True)
    script.unlink()
    fresh.rename(arguments.folder)


if __name__ == "__main__":
    main()
