#include "core/compute/framework.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace isobar::compute {

namespace {

// An eager block on A100: 3.0 ms without shards, 3.3 ms with shards (profiles/sailor, OPT-350_A100-40 and -80).
constexpr Seconds eager_forward{1.4e-3};
constexpr Seconds eager_backward{1.6e-3};
constexpr Seconds eager_shards{0.15e-3};

// Logits: a float32 copy, maximum, exponentials, sum and quotient in kernels of their own (operators/, 24 to 27 bytes
// forward); log-softmax in one kernel elsewhere.
constexpr BytesPerElement parallel_loss = {25, 4};
constexpr BytesPerElement log_softmax = {14, 18};
constexpr BytesPerElement fused_loss = {6, 6};

constexpr double adam_update = 36;  // with float32 master copies: facts of 28 to 40 bytes

// Rajbhandari et al. 2020; Megatron keeps float32 gradients; DeepSpeed's flat copies of float32.
constexpr StateBytes megatron16 = {2, 4, 12};
constexpr StateBytes plain32 = {4, 4, 8};
constexpr StateBytes deepspeed16 = {2, 2, 16};
constexpr StateBytes deepspeed32 = {4, 8, 12};

std::vector<Framework> make_framework_table()
{
  Framework megatron;
  megatron.name = "megatron-lm-2021";
  megatron.family = "megatron-lm";
  megatron.host_forward = eager_forward;
  megatron.host_backward = eager_backward;
  megatron.host_shards = eager_shards;
  megatron.has_causal_softmax = true;
  megatron.logit = parallel_loss;
  megatron.update = adam_update;
  megatron.pads_vocabulary = true;
  megatron.recomputed_collectives = 2;
  megatron.blocking_transfers = true;
  megatron.sliced_transfers = true;
  megatron.overlaps_gradient_sums = true;
  megatron.gradient_sums = DType::Float16;
  megatron.gathered = DType::Float16;
  megatron.memory = {.state16 = megatron16, .state32 = plain32, .logit = 10, .reserved = 1.05, .context = Bytes(2e9)};
  megatron.source =
      "arXiv 2104.04473 (scatter/gather, torch DDP without pipelines), its scripts of framework_table 1 (gradients in "
      "fp16), "
      "operators/ (loss), profiles/sailor (host)";

  Framework sequence_parallel = megatron;
  sequence_parallel.name = "megatron-lm-2022";
  sequence_parallel.product_speed = 1.058;
  sequence_parallel.hides_shard_sums = true;
  sequence_parallel.most_divided = Sharding::Optimizer;
  sequence_parallel.source =
      "of megatron-lm-2021; products fitted on calibration rows of megatron_seqsel; all-reduces beside weights' "
      "gradients without sequence parallelism (Megatron-LM's option "
      "async-tensor-model-parallel-allreduce, the default since 2022); its distributed optimizer is of that year";

  Framework megatron_core = megatron;
  megatron_core.name = "megatron-core-0.8";
  megatron_core.family = "megatron-core";
  megatron_core.logit = fused_loss;
  megatron_core.attention_speed = 2;
  megatron_core.blocking_transfers = false;
  megatron_core.overlaps_in_pipelines = true;
  megatron_core.hides_shard_collectives = true;
  megatron_core.gradient_sums = DType::Float32;
  megatron_core.gathered = DType::BFloat16;
  megatron_core.most_divided = Sharding::Optimizer;
  megatron_core.source =
      "of megatron-lm-2021 (host); fused loss; attention 2 x that of 2023 (arXiv 2307.08691 and 2407.08608: 0.6 of the "
      "peak of A100, 0.4 of H100); gradients in float32 beside backward passes, and "
      "collectives among shards beside products (README of its scaling runs: tp-comm-overlap, overlap-grad-reduce, "
      "overlap-param-gather)";

  Framework composer;
  composer.name = "composer-fsdp-2023";
  composer.family = "composer-fsdp";
  composer.host_forward = eager_forward;
  composer.host_backward = eager_backward;
  composer.logit = log_softmax;
  composer.stops_recomputation = true;
  composer.update = adam_update;
  composer.overlaps_gradient_sums = true;
  composer.gathered = DType::BFloat16;
  composer.most_divided = Sharding::Parameters;
  composer.memory = {.state16 = {4, 4, 8}, .state32 = plain32, .logit = 4, .reserved = 1.05, .context = Bytes(2e9)};
  composer.source =
      "llm-foundry (checkpoints that are not reentrant and stop early; float32 state divided by FSDP, parameters "
      "gathered in bf16; fused_crossentropy, its default loss_fn, keeps logits and their gradient in 16 bits); host of "
      "megatron-lm-2021";

  Framework deepspeed = megatron;
  deepspeed.name = "megatron-deepspeed-2023";
  deepspeed.family = "megatron-deepspeed";
  deepspeed.sliced_transfers = false;
  deepspeed.serial_transfers = true;
  deepspeed.pipeline_host = Seconds(1.87e-3);
  deepspeed.overlaps_gradient_sums = false;
  deepspeed.most_divided = Sharding::Parameters;
  deepspeed.memory.state16 = deepspeed16;
  deepspeed.memory.state32 = deepspeed32;
  deepspeed.source =
      "of megatron-lm-2021 (operators, host); DeepSpeed's pipelines send whole activations from every shard, "
      "one transfer after another between computations (runtime/pipe/engine.py), and add up gradients after the last "
      "backward pass; host of a pipeline fitted on calibration rows of sailor_gh200_opt350";

  Framework deepspeed_gh200 = deepspeed;
  deepspeed_gh200.name = "megatron-deepspeed-2024";
  deepspeed_gh200.host_forward = Seconds(1.33e-3);
  deepspeed_gh200.host_backward = Seconds(1.53e-3);
  deepspeed_gh200.host_shards = Seconds(0);
  deepspeed_gh200.memory.activations = 1.12;
  deepspeed_gh200.memory.reserved = 1;
  deepspeed_gh200.memory.context = Bytes(3.95e9);
  deepspeed_gh200.source =
      "of megatron-deepspeed-2023; host, activations and context fitted on calibration rows of sailor_gh200_opt350";

  Framework aceso = megatron;
  aceso.name = "aceso-2024";
  aceso.family = "aceso";
  aceso.overlaps_gradient_sums = false;
  aceso.source = "of megatron-lm-2021, with which Aceso trains; gradients after the last backward pass";

  return {aceso, composer, megatron_core, deepspeed, deepspeed_gh200, megatron, sequence_parallel};
}

const std::vector<Framework>& framework_table()
{
  static const std::vector<Framework> frameworks = make_framework_table();  // ascending by name
  return frameworks;
}

/// What names without a year or version stand for.
constexpr std::pair<std::string_view, std::string_view> family_words[] = {
    {"megatron-deepspeed", "megatron-deepspeed"},
    {"megatron-core", "megatron-core"},
    {"mcore", "megatron-core"},
    {"simumax", "megatron-core"},  // measured with Megatron-Core
    {"aceso", "aceso"},
    {"deepspeed", "megatron-deepspeed"},
    {"sailor", "megatron-deepspeed"},
    {"vtrain", "megatron-deepspeed"},
    {"amp", "megatron-deepspeed"},
    {"composer", "composer-fsdp"},
    {"llm-foundry", "composer-fsdp"},
    {"fsdp", "composer-fsdp"},
    {"megatron", "megatron-lm"},
};

/// True if the name contains the word where a word begins.
bool has_word(const std::string& name, std::string_view word)
{
  const auto at = name.find(word);
  return at == 0 || (at != std::string::npos && std::string_view("-/_ ").find(name[at - 1]) != std::string_view::npos);
}

}  // namespace

const Framework* find_framework(const std::string& name)
{
  const auto found = std::find_if(framework_table().begin(), framework_table().end(),
                                  [&](const auto& known) { return known.name == name; });
  return found == framework_table().end() ? nullptr : &*found;
}

FrameworkChoice framework_named(const std::string& name)
{
  if (const auto* known = find_framework(name)) return {known, ""};
  for (const auto& [word, family] : family_words) {
    if (!has_word(name, word)) continue;
    const auto latest = std::find_if(framework_table().rbegin(), framework_table().rend(),
                                     [&, of = family](const auto& known) { return known.family == of; });
    return {&*latest, fmt::format("framework {} has no constants of its own; those of {} stand for them", shown(name),
                                  latest->name)};
  }
  throw InputError("framework " + name, fmt::format("is unknown; write one of {}", fmt::join(framework_names(), ", ")));
}

std::vector<std::string> framework_names()
{
  std::vector<std::string> names;
  for (const auto& framework : framework_table()) names.push_back(framework.name);
  return names;
}

}  // namespace isobar::compute
