#!/usr/bin/env bash
# The gradient of a loss that is summed over devices is neither the device's part nor the whole: it is the device's part
# times the number of devices. One flag of shard_map changes it to the whole.
#
# Package: jax 0.10.2 from PyPI, on four CPU devices of one process. Needs python3 >= 3.11 with venv; downloads 140 MB.
# Input: device i of 4 has x = i, all share w; the loss is psum(w * x). The whole gradient is 10, device i's part is i.
# Guess: each device's jax.grad gives 10, or its own part 1, 2, 3, 4, to be summed afterwards.
# Seen: pmap 4 8 12 16; shard_map with check_vma=False 4 8 12 16; shard_map with check_vma=True 10 10 10 10.
# Cause: without tracking of replicated values, the transpose of psum is psum, which sums the four devices' ones.
# So: summing these gradients over devices gives 40, a learning rate four times too large that grows with the cluster.
# Take the gradient of the local loss, then sum it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet \
    jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6 opt_einsum==3.4.0 scipy==1.17.1; } ||
  { echo "cannot run: the packages do not install" >&2; exit 2; }

seen=$(JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4 "$folder/bin/python" - <<'END'
import jax
from jax.sharding import AxisType, PartitionSpec

mesh = jax.make_mesh((4,), ("device",), axis_types=(AxisType.Auto,))
x = jax.numpy.arange(1.0, 5.0)


def gradient(w, x):
    return jax.grad(lambda w: jax.lax.psum((w * x).sum(), "device"))(w)


def sharded(check_vma):
    return jax.shard_map(lambda w, x: gradient(w, x).reshape(1), mesh=mesh, check_vma=check_vma,
                         in_specs=(PartitionSpec(), PartitionSpec("device")), out_specs=PartitionSpec("device"))(1.0, x)


def shown(values):
    return " ".join(f"{float(value):g}" for value in values)


print("pmap", shown(jax.pmap(gradient, axis_name="device", in_axes=(None, 0))(1.0, x)), end="; ")
print("unchecked", shown(sharded(False)), end="; ")
print("checked", shown(sharded(True)))
END
) || true
expected='pmap 4 8 12 16; unchecked 4 8 12 16; checked 10 10 10 10'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
