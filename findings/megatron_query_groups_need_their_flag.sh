#!/usr/bin/env bash
# --num-query-groups 2 alone leaves a Megatron model with as many heads of keys and values as of queries, although the arguments that it
# prints say 2.
#
# Packages: megatron-core 0.19.2, torch 2.15.0 and numpy 2.4.6 from PyPI. Needs python3 >= 3.12 with venv; downloads 3 GB. No GPU.
# Input: the arguments of pretrain_gpt.py for a model of 8 heads, and --num-query-groups 2, without and with --group-query-attention.
# Guess: 2 groups in both cases, or an error in the first one. --hidden-size and all other sizes need no flag beside them.
# Seen: arguments.num_query_groups is 2 in both. TransformerConfig.num_query_groups, which the model is made of, is 8 in the first and 2
# in the second.
# Cause: core_transformer_config_from_args sets it to None without --group-query-attention, and TransformerConfig replaces None by the
# number of heads. Neither warns.
# So: give both options. A model with 4 times the keys and values has more parameters than was planned, and loads no checkpoint of its kind.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6 megatron-core==0.19.2; } ||
  { echo "cannot run: the packages do not install" >&2; exit 2; }
cat > "$folder/run.py" <<'END'
import contextlib
import io
import sys

with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    from megatron.training.arguments import core_transformer_config_from_args, parse_args


def groups(*options):
    """What the arguments and the configuration of the model have."""
    sys.argv = ["pretrain_gpt.py", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "8", "--transformer-impl", "local",
                "--no-rope-fusion", "--no-persist-layer-norm", "--no-gradient-accumulation-fusion", *options]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        arguments = parse_args()
        arguments.params_dtype = None
        return arguments.num_query_groups, core_transformer_config_from_args(arguments).num_query_groups


print("alone:", *groups("--num-query-groups", "2"), "with its flag:", *groups("--num-query-groups", "2", "--group-query-attention"))
END
seen=$("$folder/bin/python" "$folder/run.py" 2>/dev/null) || true
expected='alone: 2 8 with its flag: 2 2'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
