#!/usr/bin/env bash
# Keys and values that torch's repeat_interleave repeats once for grouped-query attention are copies, which a backward
# pass keeps. Attention with as many heads of keys as of queries pays for groups of one.
#
# Packages: torch 2.11.0 and numpy 2.4.6 from PyPI. Needs python3 >= 3.11 with venv; downloads 2 GB.
# Input: keys [2, 8, 64, 32] in float32 (131,072 bytes), repeated once along the heads.
# Guess: the result is the input or a view of it, as of expand and of repeat_kv in transformers, and nothing is allocated.
# Seen: expand shares the memory of its input, repeat_interleave by 1 does not. What autograd keeps of Q K^T, and was not
# there before, is 0 bytes with expand and 131,072 with repeat_interleave.
# Cause: it gathers by an index that it makes, whatever the number of repeats.
# So: a branch for equal numbers of heads saves the memory of keys and values of each layer, and its traffic.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet torch==2.11.0 numpy==2.4.6; } ||
  { echo "cannot run: the packages do not install" >&2; exit 2; }

seen=$("$folder/bin/python" - <<'END'
import torch

keys = torch.randn(2, 8, 64, 32, requires_grad=True)
queries = torch.randn(2, 8, 64, 32, requires_grad=True)


def of(name, repeat):
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.setdefault(each.data_ptr(), each), lambda each: each):
        repeated = repeat(keys)
        torch.matmul(queries, repeated.transpose(-2, -1))
    new = sum(each.nbytes for place, each in kept.items()
              if each.is_floating_point() and place not in (keys.data_ptr(), queries.data_ptr()))
    return f"{name} {'shares' if repeated.data_ptr() == keys.data_ptr() else 'copies'} {new}"


print("; ".join([of("expand", lambda each: each.expand(-1, 8, -1, -1)),
                 of("repeat_interleave", lambda each: each.repeat_interleave(1, 1))]))
END
) || true
expected='expand shares 0; repeat_interleave copies 131072'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
