#!/usr/bin/env python3
"""Counts parameters and FLOPs of the models that `isobar workload import` reads, by transformers and torch themselves.

transformers_parameters.py [-o FOLDER] [--configurations FOLDER] writes transformers.csv: for each model_type the
parameters of its default configuration, and the FLOPs of a forward pass of 128 tokens (torch's FlopCounterMode, eager
attention). Models are on the meta device and take no memory. The configurations, as transformers saves them, go to the
second folder. It needs the packages that it is pinned to, in an environment of its own:

    pip install transformers==5.24.0 torch==2.11.0
"""
import argparse
import csv
import os
import pathlib
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch  # noqa: E402
import transformers  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
PINNED = {"transformers": "5.24.0", "torch": "2.11.0"}
TOKENS = 128
TYPES = """bloom cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v4 falcon gemma gemma2 gemma3_text glm4 glm4_moe glm_moe_dsa
gpt2 gpt_neox gpt_oss granite llama llama4_text mistral mixtral mpt nemotron_h olmo olmo2 olmo3 opt phi3 qwen2 qwen2_moe
qwen3 qwen3_moe qwen3_next stablelm starcoder2""".split()
# Where torch does not count what Isobar does.
OTHER_WORK = {
    "deepseek_v2": "its default names no number of experts for a token",
    "glm_moe_dsa": "the indexer sums its heads by a product and attention computes all pairs",
    "llama4_text": "every expert computes every token",
    "nemotron_h": "the scan is no product of torch's list",
    "qwen3_next": "the gated delta rule runs in chunks",
}


def model_of(config):
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(torch.bfloat16)


def flops_of(config):
    """Of a forward pass of TOKENS tokens; attention has a mask where transformers would look into the data for one."""
    config._experts_implementation = "batched_mm"  # products of the experts of each token, without their numbers
    model = model_of(config)
    tokens = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    mask = torch.zeros(1, 1, TOKENS, TOKENS, device="meta", dtype=torch.bfloat16)
    by_kind = dict.fromkeys(("full_attention", "sliding_attention", "chunked_attention"), mask)
    faults = []
    for attention in (None, mask, by_kind):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            try:
                model(tokens, attention_mask=attention, use_cache=False)
            except (AttributeError, RuntimeError, TypeError) as fault:
                faults.append(f"{type(fault).__name__}: {fault}")
                continue
        return counter.get_total_flops()
    raise RuntimeError(f"{config.model_type} computes nothing on the meta device: {faults}")


def rows(configurations):
    for name in TYPES:
        config = CONFIG_MAPPING[name]()
        (configurations / f"{name}.json").write_text(config.to_json_string(use_diff=False))
        parameters = sum(parameter.numel() for parameter in model_of(config).parameters())
        note = OTHER_WORK.get(name, "")
        yield [name, parameters, "" if note else flops_of(config), note]
        print(name, parameters, note, file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "results/models",
                        help="folder of transformers.csv (default: results/models)")
    parser.add_argument("--configurations", type=pathlib.Path, default=ROOT / "tests/core/huggingface/defaults",
                        help="folder of the configurations (default: tests/core/huggingface/defaults)")
    options = parser.parse_args()
    for package, version in PINNED.items():
        found = sys.modules[package].__version__.partition("+")[0]
        if found != version:
            parser.exit(2, f"{package} {found} is installed; the table is of {version}\n")
    for folder in (options.output, options.configurations):
        folder.mkdir(parents=True, exist_ok=True)
    with open(options.output / "transformers.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["model_type", "parameters", "flops_of_128_tokens", "note"])
        table.writerows(rows(options.configurations))


if __name__ == "__main__":
    main()
