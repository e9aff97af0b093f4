#include "core/model/decoder/decoder_parts.hpp"

#include "core/errors.hpp"
#include "core/model/decoder/part_memory.hpp"

#include <algorithm>
#include <numeric>

namespace isobar::decoder {

bool is_attention(Mixer mixer)
{
  return mixer == Mixer::Full || mixer == Mixer::Window || mixer == Mixer::Chunk || mixer == Mixer::CompressedSparse ||
         mixer == Mixer::HeavilyCompressed;
}

std::uint64_t keys_and_values(const DecoderSizes& sizes)
{
  return (sizes.has_shared_kv ? 1 : 2) * sizes.kv_heads * sizes.head_width;
}

std::uint64_t compressed_numbers(const DecoderSizes& sizes, Mixer mixer)
{
  if (compression_of(sizes, mixer) == 0) return 0;
  return (mixer == Mixer::CompressedSparse ? 2 : 1) * sizes.head_width;
}

std::uint64_t indexed_numbers(const DecoderSizes& sizes, Mixer mixer)
{
  return mixer == Mixer::CompressedSparse ? 2 * sizes.indexer.width : 0;
}

namespace {

using Division = DecoderProduct::Division;
/// Attention with two products: queries, keys and values, and the output.
bool has_two_products(const DecoderSizes& sizes, Mixer mixer)
{
  return is_attention(mixer) && compression_of(sizes, mixer) == 0 && sizes.q_rank == 0 && !sizes.has_shared_kv &&
         sizes.output_groups.count == 0;
}

/// The products that make entries of tokens, and scores of the entries. The published weights in 8 bits have these in
/// 16 (transformers, modeling_deepseek_v4.py, _keep_in_fp32_modules).
void add_products_of_entries(const DecoderSizes& sizes, Mixer mixer, std::vector<DecoderProduct>& products)
{
  const auto in_16_bits = [&](std::uint64_t outputs) {
    products.push_back({.inputs = sizes.hidden, .outputs = outputs, .is_quantized = false, .division = Division::None});
  };
  if (compression_of(sizes, mixer) == 0) return;
  in_16_bits(2 * compressed_numbers(sizes, mixer));
  if (mixer != Mixer::CompressedSparse) return;
  const auto& indexer = sizes.indexer;
  in_16_bits(2 * indexed_numbers(sizes, mixer));
  products.push_back({.inputs = sizes.q_rank, .outputs = indexer.heads * indexer.width, .division = Division::None});
  in_16_bits(indexer.heads);
}

std::vector<DecoderProduct> products_of_attention(const DecoderSizes& sizes, Mixer mixer)
{
  using enum BlockOperator;
  const std::uint64_t hidden = sizes.hidden;
  const std::uint64_t heads = sizes.heads * sizes.head_width;
  const std::uint64_t queries = (sizes.has_output_gate ? 2 : 1) * heads;
  const std::uint64_t keys = keys_and_values(sizes);
  const bool has_bias = sizes.biases.qkv;
  std::vector<DecoderProduct> products;
  if (sizes.q_rank == 0 && !sizes.has_shared_kv) {
    products.push_back({.inputs = hidden, .outputs = queries + keys, .has_bias = has_bias});
  } else {
    if (sizes.q_rank > 0) {
      products.push_back({.inputs = hidden, .outputs = sizes.q_rank, .division = Division::None, .has_bias = has_bias});
      products.push_back({.of = QkvUp, .inputs = sizes.q_rank, .outputs = queries});
    } else {
      products.push_back({.inputs = hidden, .outputs = queries, .has_bias = has_bias});
    }
    products.push_back({.inputs = hidden,
                        .outputs = keys,
                        .division = sizes.has_shared_kv ? Division::None : Division::Outputs,
                        .has_bias = has_bias});
  }
  add_products_of_entries(sizes, mixer, products);
  const auto& [groups, rank] = sizes.output_groups;
  if (groups > 0) {
    products.push_back(
        {.of = Projection, .inputs = heads / groups, .outputs = rank, .matrices = groups, .per_token = groups});
  }
  products.push_back({.of = Projection,
                      .inputs = groups > 0 ? groups * rank : heads,
                      .outputs = hidden,
                      .division = Division::Inputs,
                      .has_bias = sizes.biases.output});
  return products;
}

std::vector<DecoderProduct> products_of_latent(const DecoderSizes& sizes)
{
  using enum BlockOperator;
  const auto& [kv_rank, nope, rope, value] = sizes.latent;
  const std::uint64_t q_rank = sizes.q_rank;
  const std::uint64_t hidden = sizes.hidden;
  const std::uint64_t queries = sizes.heads * (nope + rope);
  const bool has_bias = sizes.biases.qkv;
  std::vector<DecoderProduct> products;
  if (q_rank > 0) {
    products.push_back({.inputs = hidden, .outputs = q_rank, .division = Division::None, .has_bias = has_bias});
  }
  products.push_back({.of = QkvUp, .inputs = q_rank > 0 ? q_rank : hidden, .outputs = queries});
  products.push_back({.inputs = hidden, .outputs = kv_rank + rope, .division = Division::None, .has_bias = has_bias});
  products.push_back({.of = QkvUp, .inputs = kv_rank, .outputs = sizes.heads * (nope + value)});
  if (const auto& indexer = sizes.indexer; indexer.heads > 0) {
    const std::uint64_t queries_of_indexer = indexer.heads * indexer.width;
    products.push_back({.inputs = q_rank, .outputs = queries_of_indexer, .division = Division::None});
    products.push_back({.inputs = hidden, .outputs = indexer.width, .division = Division::None});
    products.push_back({.inputs = hidden, .outputs = indexer.heads, .division = Division::None});
  }
  products.push_back({.of = Projection,
                      .inputs = sizes.heads * value,
                      .outputs = hidden,
                      .division = Division::Inputs,
                      .has_bias = sizes.biases.output});
  return products;
}

std::vector<DecoderProduct> products_of_experts(const DecoderSizes& sizes)
{
  using enum BlockOperator;
  const ExpertSizes& experts = sizes.experts;
  const std::uint64_t hidden = sizes.hidden;
  const std::uint64_t ups = sizes.is_gated ? 2 : 1;
  const std::uint64_t width = experts.latent > 0 ? experts.latent : hidden;
  const auto undivided = [](BlockOperator of, std::uint64_t inputs, std::uint64_t outputs, bool has_bias) {
    return DecoderProduct{
        .of = of, .inputs = inputs, .outputs = outputs, .division = Division::None, .has_bias = has_bias};
  };
  std::vector<DecoderProduct> products;
  products.push_back(undivided(Router, hidden, experts.count, sizes.biases.router));
  products.back().is_quantized = false;
  if (experts.latent > 0) products.push_back(undivided(Router, hidden, width, sizes.biases.mlp));
  products.push_back({.of = Up,
                      .inputs = width,
                      .outputs = ups * experts.intermediate,
                      .matrices = experts.count,
                      .per_token = experts.per_token,
                      .is_routed = true,
                      .has_bias = sizes.biases.experts});
  products.push_back({.of = Down,
                      .inputs = experts.intermediate,
                      .outputs = width,
                      .matrices = experts.count,
                      .per_token = experts.per_token,
                      .is_routed = true,
                      .division = Division::Inputs,
                      .has_bias = sizes.biases.experts});
  if (experts.latent > 0) products.push_back(undivided(Router, width, hidden, sizes.biases.mlp));
  if (experts.shared == 0) return products;
  products.push_back(
      {.of = SharedExperts, .inputs = hidden, .outputs = ups * experts.shared, .has_bias = sizes.biases.mlp});
  products.push_back({.of = SharedExperts,
                      .inputs = experts.shared,
                      .outputs = hidden,
                      .division = Division::Inputs,
                      .has_bias = sizes.biases.mlp});
  if (experts.has_shared_gate) {
    products.push_back(undivided(SharedExperts, hidden, 1, false));
    products.back().is_quantized = false;
  }
  return products;
}

/// Parameters of a mixer beside those of its products and of norms of `hidden` numbers.
struct OtherParameters {
  std::uint64_t divided = 0;   ///< among shards
  std::uint64_t repeated = 0;  ///< each shard has them
};

OtherParameters others_of_attention(const DecoderSizes& sizes, Mixer mixer)
{
  OtherParameters others;
  others.repeated += sizes.q_rank;  // the norm of compressed queries
  if (const std::uint64_t rate = compression_of(sizes, mixer); rate > 0) {
    // A bias of each weight by the place of its token, and the norm of entries.
    others.repeated += rate * compressed_numbers(sizes, mixer) + sizes.head_width;
    if (mixer == Mixer::CompressedSparse) others.repeated += rate * indexed_numbers(sizes, mixer) + sizes.indexer.width;
  }
  if (sizes.head_norm == HeadNorm::Head) others.repeated += 2 * sizes.head_width;
  if (sizes.head_norm == HeadNorm::WeightedKeys) others.repeated += sizes.head_width;
  if (sizes.head_norm == HeadNorm::EachHead || sizes.head_norm == HeadNorm::AllHeads) {
    others.divided += (sizes.heads + sizes.kv_heads) * sizes.head_width;
  }
  if (sizes.has_sinks) others.divided += sizes.heads;
  return others;
}

OtherParameters others_of(const DecoderSizes& sizes, Mixer mixer)
{
  switch (mixer) {
    case Mixer::Latent:  // norms of the compressed vectors, and of the indexer's keys
      return {.repeated = sizes.q_rank + sizes.latent.kv_rank + 2 * sizes.indexer.width};
    case Mixer::DeltaNet: {
      const auto& net = sizes.delta_net;
      const std::uint64_t decays = 2 * net.value_heads;
      return {net.kernel * (2 * net.keys() + net.values()) + decays, net.value_width};
    }
    case Mixer::Mamba2: {
      const auto& mamba = sizes.mamba2;
      const std::uint64_t convolution = (mamba.kernel + (sizes.biases.convolution ? 1 : 0)) * mamba.convolved();
      return {.divided = convolution + 3 * mamba.heads + mamba.inner()};
    }
    default:
      return others_of_attention(sizes, mixer);
  }
}

std::uint64_t weights_of(const std::vector<DecoderProduct>& products)
{
  std::uint64_t sum = 0;
  for (const auto& product : products) sum += product.weights();
  return sum;
}

std::uint64_t parameters_of(const std::vector<DecoderProduct>& products)
{
  std::uint64_t sum = weights_of(products);
  for (const auto& product : products) sum += product.biases();
  return sum;
}

std::uint64_t divided_parameters_of(const std::vector<DecoderProduct>& products)
{
  std::uint64_t sum = 0;
  for (const auto& product : products) {
    if (product.division != Division::None) sum += product.weights();
    if (product.division == Division::Outputs) sum += product.biases();
  }
  return sum;
}

/// Multiply-adds of a token.
double multiply_adds_of(const std::vector<DecoderProduct>& products)
{
  double sum = 0;
  for (const auto& product : products) sum += number(product.multiply_adds_of_token());
  return sum;
}

LargestProduct largest_of(const std::vector<DecoderProduct>& products, double tokens)
{
  const auto& largest = *std::max_element(products.begin(), products.end(), [](const auto& one, const auto& other) {
    return one.weights() < other.weights();
  });
  const double rows = tokens * number(largest.per_token);
  return {rows * number(largest.inputs), rows * number(largest.outputs), number(largest.weights())};
}

std::uint64_t units_of(const DecoderSizes& sizes, Mixer mixer)
{
  switch (mixer) {
    case Mixer::Latent:
      return sizes.heads;
    case Mixer::DeltaNet:
      return sizes.delta_net.key_heads;
    case Mixer::Mamba2:
      return sizes.mamba2.groups;
    default:
      break;
  }
  const std::uint64_t groups = sizes.output_groups.count;
  if (sizes.has_shared_kv) return groups > 0 ? groups : sizes.heads;  // each shard computes the keys
  return groups > 0 ? std::gcd(sizes.kv_heads, groups) : sizes.kv_heads;
}

std::uint64_t norm_sums_of(const DecoderSizes& sizes)
{
  return sizes.norm == Norm::Rms ? 1 : 2;  // of squares; for mean and variance
}

std::vector<MatrixProduct> plain(const std::vector<DecoderProduct>& products)
{
  std::vector<MatrixProduct> matrices;
  for (const auto& product : products) matrices.push_back({product.inputs, product.outputs});
  return matrices;
}

Experts experts_of(const DecoderSizes& sizes, const std::vector<DecoderProduct>& products, const Workload& workload)
{
  const ExpertSizes& experts = sizes.experts;
  const double tokens = number(workload.micro_batch) * number(workload.sequence);
  const double z = size_of(workload.dtype);
  const double width = number(experts.latent > 0 ? experts.latent : sizes.hidden);
  Experts routed;
  routed.count = experts.count;
  routed.per_token = experts.per_token;
  double multiply_adds = 0;
  for (const auto& product : products) {
    if (!product.is_routed) continue;
    routed.parameters += product.weights() + product.biases();
    multiply_adds += tokens * number(product.multiply_adds_of_token());
  }
  routed.forward = Flops(2 * multiply_adds);
  routed.backward = 2 * routed.forward;
  routed.backward_weight = routed.forward;
  const double rows = tokens * number(experts.per_token);
  routed.dispatched = Bytes(z * rows * width);
  routed.activations = routed.dispatched + Bytes(z * rows * number((sizes.is_gated ? 3 : 2) * experts.intermediate));
  return routed;
}

}  // namespace

BlockOperators operators_of(const DecoderSizes& sizes, const DecoderBlock& block)
{
  using enum BlockOperator;
  BlockOperators operators;
  const bool has_norms = sizes.norm_place != NormPlace::After;
  if (block.mixer != Mixer::None) {
    for (const auto which : {Qkv, Context, Projection}) operators.add(which);
    if (has_norms) operators.add(Norm1);
    const bool is_compressed = is_attention(block.mixer) && sizes.q_rank > 0;
    if (is_compressed || block.mixer == Mixer::Latent) operators.add(QkvUp);
  }
  if (block.feed_forward != FeedForward::None) {
    for (const auto which : {Up, Activation, Down}) operators.add(which);
    if (has_norms && norms_of_feed_forward(sizes) > 0) operators.add(Norm2);
    const bool has_experts = block.feed_forward == FeedForward::Experts;
    if (has_experts) operators.add(Router);
    if (has_experts && sizes.experts.shared > 0) operators.add(SharedExperts);
  }
  return operators;
}

std::vector<DecoderProduct> products_of(const DecoderSizes& sizes, Mixer mixer)
{
  using enum BlockOperator;
  const std::uint64_t hidden = sizes.hidden;
  switch (mixer) {
    case Mixer::None:
      return {};
    case Mixer::Latent:
      return products_of_latent(sizes);
    case Mixer::DeltaNet: {
      const auto& net = sizes.delta_net;
      return {{.inputs = hidden, .outputs = 2 * net.keys() + 2 * net.values()},
              {.inputs = hidden, .outputs = 2 * net.value_heads},
              {.of = Projection, .inputs = net.values(), .outputs = hidden, .division = Division::Inputs}};
    }
    case Mixer::Mamba2: {
      const auto& mamba = sizes.mamba2;
      const bool has_bias = sizes.biases.mamba;
      return {{.inputs = hidden, .outputs = mamba.inner() + mamba.convolved() + mamba.heads, .has_bias = has_bias},
              {.of = Projection,
               .inputs = mamba.inner(),
               .outputs = hidden,
               .division = Division::Inputs,
               .has_bias = has_bias}};
    }
    default:
      return products_of_attention(sizes, mixer);
  }
}

std::vector<DecoderProduct> products_of(const DecoderSizes& sizes, FeedForward network)
{
  using enum BlockOperator;
  if (network == FeedForward::None) return {};
  if (network == FeedForward::Experts) return products_of_experts(sizes);
  const std::uint64_t inner = sizes.intermediate;
  const bool has_bias = sizes.biases.mlp;
  return {{.of = Up, .inputs = sizes.hidden, .outputs = (sizes.is_gated ? 2 : 1) * inner, .has_bias = has_bias},
          {.of = Down, .inputs = inner, .outputs = sizes.hidden, .division = Division::Inputs, .has_bias = has_bias}};
}

std::uint64_t norms_of_mixer(const DecoderSizes& sizes)
{
  return sizes.norm_place == NormPlace::Both ? 2 : 1;
}

std::uint64_t norms_of_feed_forward(const DecoderSizes& sizes)
{
  return sizes.norm_place == NormPlace::Shared ? 0 : norms_of_mixer(sizes);
}

MixerCore core_of(const DecoderSizes& sizes, const DecoderBlock& block, std::uint64_t sequence)
{
  MixerCore core;
  const double tokens = number(sequence);
  switch (block.mixer) {
    case Mixer::None:
      return core;
    case Mixer::DeltaNet: {
      constexpr double products_of_state = 4;  // of keys, of values and keys, the decay, and its use (Megatron-LM)
      const auto& net = sizes.delta_net;
      core.convolved = tokens * number(net.kernel * (2 * net.keys() + net.values()));
      core.recurrence =
          core.convolved + tokens * products_of_state * number(net.value_heads * net.value_width * net.value_width);
      core.normed = net.values();
      return core;
    }
    case Mixer::Mamba2: {
      constexpr double products_of_state = 3.5;  // 7 FLOPs for each number of the state (Megatron-LM)
      const auto& mamba = sizes.mamba2;
      core.convolved = tokens * number(mamba.kernel * mamba.convolved());
      core.recurrence = core.convolved + tokens * products_of_state * number(mamba.inner() * mamba.state);
      core.normed = mamba.inner();
      return core;
    }
    case Mixer::Latent:
      core.query_width = sizes.latent.nope + sizes.latent.rope;
      core.value_width = sizes.latent.value;
      core.rotated = (sizes.heads + 1) * sizes.latent.rope;
      core.normed = sizes.q_rank + sizes.latent.kv_rank;
      break;
    default: {
      // Values that are keys, too, are turned back in the sums.
      const std::uint64_t turned = (sizes.has_shared_kv ? 2 : 1) * sizes.heads + sizes.kv_heads;
      core.query_width = core.value_width = sizes.head_width;
      core.rotated = turned * (sizes.rotated > 0 ? sizes.rotated : sizes.head_width);
      core.normed = sizes.q_rank + compressed_numbers(sizes, block.mixer) + indexed_numbers(sizes, block.mixer);
      if (sizes.head_norm != HeadNorm::None) core.normed += (sizes.heads + sizes.kv_heads) * sizes.head_width;
      break;
    }
  }
  core.recurrence = scored_pairs(sizes, block.mixer, sequence) * number(sizes.indexer.heads * sizes.indexer.width);
  if (!block.rotates) core.rotated = 0;
  core.attention =
      seen_pairs(sizes, block.mixer, sequence) * number(sizes.heads * (core.query_width + core.value_width));
  return core;
}

HyperConnection connection_of_part(const DecoderSizes& sizes)
{
  const std::uint64_t streams = sizes.streams;
  const std::uint64_t numbers = streams * sizes.hidden;
  return {.inputs = numbers,
          .outputs = streams * (streams + 2),  // of its input, of its output, and from each stream to each
          .scales = 3,
          .mixing = number(streams * numbers),
          .kept_numbers = number(numbers + sizes.hidden)};  // the streams, and the output of the part
}

HyperConnection connection_of_head(const DecoderSizes& sizes)
{
  const std::uint64_t numbers = sizes.streams * sizes.hidden;
  return {.inputs = numbers, .outputs = sizes.streams, .scales = 1, .kept_numbers = number(numbers)};
}

void add_connection(LayerSizes& layer, const HyperConnection& connection, const Workload& workload)
{
  constexpr double float32 = 4;
  const double tokens = number(workload.micro_batch) * number(workload.sequence);
  layer.parameters += connection.parameters();
  layer.multiply_adds += tokens * (number(connection.inputs * connection.outputs) + connection.mixing);
  layer.score_multiply_adds += tokens * connection.mixing;
  const double kept = kept_by_connection(connection, workload);
  layer.activations += kept;
  layer.kept += kept;
  // The product reads the streams in float32, and so is their gradient.
  layer.passing = std::max(layer.passing, 2 * float32 * tokens * number(connection.inputs));
}

namespace {

/// Adds its connection to a part of a block, which then reads and gives all streams.
void connect(LayerSizes& part, const DecoderSizes& sizes, const Workload& workload)
{
  add_connection(part, connection_of_part(sizes), workload);
  part.output *= number(sizes.streams);
}

}  // namespace

LayerSizes mixer_of(const DecoderSizes& sizes, const DecoderBlock& block, const Workload& workload)
{
  const Mixer mixer = block.mixer;
  ensure(mixer != Mixer::None, "a block with a mixer");
  const double z = size_of(workload.dtype);
  const double samples = number(workload.micro_batch);
  const double sequence = number(workload.sequence);
  const double tokens = samples * sequence;
  const double states = tokens * number(sizes.hidden);
  const std::uint64_t norms = norms_of_mixer(sizes);
  const auto products = products_of(sizes, mixer);
  const OtherParameters others = others_of(sizes, mixer);
  const MixerCore core = core_of(sizes, block, workload.sequence);
  const bool has_scores = is_attention(mixer) || mixer == Mixer::Latent;
  const bool is_recomputed = sizes.attention == Attention::Recomputed;

  LayerSizes part;
  part.name = "attention";
  part.parameters = parameters_of(products) + others.divided + others.repeated +
                    norms * isobar::parameters_of(sizes.norm) * sizes.hidden;
  part.score_multiply_adds = samples * (core.multiply_adds() - core.convolved);
  part.multiply_adds = tokens * multiply_adds_of(products) + samples * core.multiply_adds();
  if (has_scores && is_recomputed) part.recomputed_multiply_adds = samples * core.attention;
  const double scores = kept_scores(sizes, mixer, workload);
  const KeptBytes kept = bytes_of(kept_by_mixer(sizes, mixer, workload));
  part.activations = kept.all();
  part.output = z * states;
  const KernelNeeds needs = has_two_products(sizes, mixer)
                                ? needs_of_attention(sizes, workload, part.activations, scores)
                                : needs_of_products(sizes, workload, part.activations, number(weights_of(products)),
                                                    largest_of(products, tokens));
  part.kept = needs.kept;
  part.passing = needs.passing;
  part.split = Split{.name = "heads",
                     .units = units_of(sizes, mixer),
                     .parameters = divided_parameters_of(products) + others.divided,
                     .activations = Bytes(kept.divided),
                     .products = has_two_products(sizes, mixer) ? plain(products) : std::vector<MatrixProduct>{},
                     .norm_sums = norms * norm_sums_of(sizes)};
  if (sizes.streams > 1) connect(part, sizes, workload);
  return part;
}

LayerSizes feed_forward_of(const DecoderSizes& sizes, const DecoderBlock& block, const Workload& workload)
{
  const FeedForward network = block.feed_forward;
  ensure(network != FeedForward::None, "a block with a feed-forward network");
  const double z = size_of(workload.dtype);
  const double tokens = number(workload.micro_batch) * number(workload.sequence);
  const double states = tokens * number(sizes.hidden);
  const std::uint64_t norms = norms_of_feed_forward(sizes);
  const auto products = products_of(sizes, network);

  LayerSizes part;
  part.name = "mlp";
  part.parameters = parameters_of(products) + norms * isobar::parameters_of(sizes.norm) * sizes.hidden;
  part.multiply_adds = tokens * multiply_adds_of(products);
  part.output = z * states;
  const KeptBytes kept = bytes_of(kept_by_feed_forward(sizes, network, workload));
  part.activations = kept.all();
  std::uint64_t units = sizes.intermediate;
  KernelNeeds needs;
  if (network == FeedForward::Experts) {
    const ExpertSizes& experts = sizes.experts;
    part.experts = experts_of(sizes, products, workload);
    units = experts.shared > 0 ? std::gcd(experts.intermediate, experts.shared) : experts.intermediate;
    needs = needs_of_products(sizes, workload, part.activations, number(weights_of(products)),
                              largest_of(products, tokens));
  } else {
    needs = needs_of_feed_forward(sizes, workload);
  }
  part.kept = needs.kept;
  part.passing = needs.passing;
  part.split = Split{.name = "columns",
                     .units = units,
                     .parameters = divided_parameters_of(products),
                     .activations = Bytes(kept.divided),
                     .products = network == FeedForward::Dense ? plain(products) : std::vector<MatrixProduct>{},
                     .norm_sums = norms * norm_sums_of(sizes)};
  if (sizes.streams > 1) connect(part, sizes, workload);
  return part;
}

std::uint64_t parameters_of_token(const DecoderSizes& sizes)
{
  const Workload workload;
  std::uint64_t sum = sizes.vocabulary * sizes.hidden + isobar::parameters_of(sizes.norm) * sizes.hidden;
  if (sizes.streams > 1) sum += connection_of_head(sizes).parameters();
  for (const auto& block : sizes.blocks) {
    if (block.mixer != Mixer::None) sum += mixer_of(sizes, block, workload).parameters;
    if (block.feed_forward == FeedForward::None) continue;
    const LayerSizes network = feed_forward_of(sizes, block, workload);
    sum += network.parameters;
    if (!network.experts) continue;
    const std::uint64_t idle = network.experts->count - network.experts->per_token;
    sum -= network.experts->parameters / network.experts->count * idle;
  }
  return sum;
}

double kept_states_of_mtp(const DecoderSizes& sizes)
{
  return 2 + 2 * number(sizes.streams);
}

}  // namespace isobar::decoder
