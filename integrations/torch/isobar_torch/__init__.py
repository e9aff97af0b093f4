"""Runs Isobar's plans on torch.distributed.pipelining, and makes workloads of torch modules (docs/frameworks.md)."""

__version__ = "0.1.0"
