#!/usr/bin/env bash
# A Megatron-Core model of latent attention has RMSNorm by default, where every other one has LayerNorm.
#
# Packages: megatron-core 0.19.2, torch 2.15.0 and numpy 2.4.6 from PyPI. Needs python3 >= 3.12 with venv; downloads 3 GB. No GPU.
# Input: TransformerConfig and its subclass MLATransformerConfig with the same sizes, and nothing said of norms.
# Guess: a subclass for another attention changes what is of the attention, so both have the norm of the base class.
# Seen: TransformerConfig.normalization is LayerNorm, MLATransformerConfig.normalization is RMSNorm.
# Cause: MLATransformerConfig declares the field again, with another default.
# So: name the norm in both. LayerNorm has a bias, so the two models differ in their parameters, not only in their times.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6 megatron-core==0.19.2; } ||
  { echo "cannot run: the packages do not install" >&2; exit 2; }
cat > "$folder/run.py" <<'END'
from megatron.core.transformer import MLATransformerConfig, TransformerConfig

sizes = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 8}
print(TransformerConfig(**sizes).normalization, MLATransformerConfig(**sizes).normalization)
END
seen=$("$folder/bin/python" "$folder/run.py" 2>/dev/null) || true
expected='LayerNorm RMSNorm'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
