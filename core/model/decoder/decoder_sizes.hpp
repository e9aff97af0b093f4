#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The sizes of a decoder of which each block may be of another kind. Numbers of layers, widths and tokens are counts.
namespace isobar {

/// How the attention of a sample is computed.
enum class Attention {
  Unfused,  ///< computes the S x S probabilities for each head and keeps them for the backward pass
  /// Computes them again in the backward pass (Korthikanti et al. 2022: selective recomputation).
  Recomputed,
  Fused  ///< one kernel (Dao et al. 2022, arXiv 2205.14135) that keeps a number for each token and head instead
};
std::string_view name_of(Attention attention);
std::optional<Attention> attention_from_name(std::string_view name);
std::vector<std::string> attention_names();

/// What a layer is.
enum class Unit {
  Block,    ///< attention and feed-forward network
  Operator  ///< one of the two; of a mixture of experts, an operator (core/spmd)
};
std::string_view name_of(Unit unit);
std::optional<Unit> unit_from_name(std::string_view name);
std::vector<std::string> unit_names();

/// The part of a block in which tokens see those before them.
enum class Mixer : std::uint8_t {
  None,
  Full,    ///< attention to all tokens up to the own one, grouped-query
  Window,  ///< likewise, to the last `window` of them
  Chunk,   ///< likewise, to those of the own chunk of `chunk` tokens
  Latent,  ///< multi-head latent attention (DeepSeek-V2, arXiv 2405.04434); with an Indexer to some tokens only
  /// Attention to the last `window` tokens, and to those entries that an indexer chooses. An entry is a weighted mean
  /// of neighbouring tokens, whose weights a product makes: of twice CompressionSizes::sparse tokens, half of which are
  /// in the next entry, too (DeepSeek-V4 report, section 2.3.1).
  CompressedSparse,
  /// Likewise, to all entries, each of CompressionSizes::heavy tokens of its own (section 2.3.2).
  HeavilyCompressed,
  DeltaNet,  ///< gated delta rule after a short convolution (Yang et al. 2024, arXiv 2412.06464)
  Mamba2     ///< state-space duality (Dao and Gu 2024, arXiv 2405.21060)
};
std::string_view name_of(Mixer mixer);
std::optional<Mixer> mixer_from_name(std::string_view name);
std::vector<std::string> mixer_names();

/// The part of a block that computes each token by itself.
enum class FeedForward : std::uint8_t {
  None,
  Dense,
  Experts  ///< a router, routed experts and perhaps a shared one
};
std::string_view name_of(FeedForward network);
std::optional<FeedForward> feed_forward_from_name(std::string_view name);
std::vector<std::string> feed_forward_names();

/// A block of a decoder.
struct DecoderBlock {
  Mixer mixer = Mixer::Full;
  FeedForward feed_forward = FeedForward::Dense;
  bool rotates = true;  ///< rotary positions turn queries and keys of its attention

  bool operator==(const DecoderBlock&) const = default;
};

/// What a normalization has and subtracts.
enum class Norm : std::uint8_t {
  Rms,                 ///< divides by the root of the mean square; a weight for each number
  Layer,               ///< subtracts the mean, divides by the deviation; a weight and a bias
  LayerWithoutBias,    ///< likewise; a weight
  LayerWithoutWeights  ///< likewise; no parameters
};
std::string_view name_of(Norm norm);
std::optional<Norm> norm_from_name(std::string_view name);
std::vector<std::string> norm_names();
/// Parameters for each number.
std::uint64_t parameters_of(Norm norm);

/// Which tensors of a block are normalized.
enum class NormPlace : std::uint8_t {
  Before,  ///< the inputs of mixer and feed-forward network
  After,   ///< their outputs, before they are added to the residual
  Both,
  Shared  ///< the input of the block, which both read; they run in parallel
};
std::string_view name_of(NormPlace place);
std::optional<NormPlace> norm_place_from_name(std::string_view name);
std::vector<std::string> norm_place_names();

/// The normalization of queries and keys.
enum class HeadNorm : std::uint8_t {
  None,
  Head,         ///< of each head; all heads of queries, and all of keys, have the same weights
  EachHead,     ///< of each head, by weights of its own
  AllHeads,     ///< of all heads together
  Unweighted,   ///< of each head, without weights
  WeightedKeys  ///< of each head; those of keys have the same weights, those of queries none
};
std::string_view name_of(HeadNorm norm);
std::optional<HeadNorm> head_norm_from_name(std::string_view name);
std::vector<std::string> head_norm_names();

/// The function between the products of a feed-forward network.
enum class Activation : std::uint8_t { Silu, Gelu, GeluTanh, Relu, SquaredRelu };
std::string_view name_of(Activation activation);
std::optional<Activation> activation_from_name(std::string_view name);
std::vector<std::string> activation_names();

/// The function that makes weights of a router's logits.
enum class RouterScores : std::uint8_t {
  Softmax,  ///< over all experts
  Sigmoid   ///< of each logit by itself (DeepSeek-V3, arXiv 2412.19437, equation 15)
};
std::string_view name_of(RouterScores scores);
std::optional<RouterScores> router_scores_from_name(std::string_view name);
std::vector<std::string> router_scores_names();

/// How rotary positions turn by less than their base says, so that a model reads longer sequences than it was trained
/// on. Source: transformers, modeling_rope_utils.py.
struct RopeScaling {
  enum class Type : std::uint8_t {
    None,
    Linear,  ///< all angles over `factor` (Chen et al. 2023, arXiv 2306.15595)
    Llama3   ///< slow turns over `factor`, fast ones as they are, and a ramp between them (Llama 3.1)
  };
  Type type = Type::None;
  double factor = 1;
  // Llama3: turns within `original_positions` tokens, below which all of `factor` counts, and above which none does.
  double low_frequency = 1;
  double high_frequency = 4;
  std::uint64_t original_positions = 8192;

  bool operator==(const RopeScaling&) const = default;
};
std::string_view name_of(RopeScaling::Type type);
std::optional<RopeScaling::Type> rope_scaling_from_name(std::string_view name);
std::vector<std::string> rope_scaling_names();

/// Which products and convolutions add a bias.
struct DecoderBiases {
  bool qkv = false;      ///< of queries, keys and values; where a product compresses them, of that one
  bool output = false;   ///< of attention
  bool mlp = false;      ///< of dense feed-forward networks and shared experts
  bool experts = false;  ///< of routed ones
  bool router = false;
  bool convolution = false;  ///< of Mamba-2
  bool mamba = false;        ///< of the products of Mamba-2

  bool operator==(const DecoderBiases&) const = default;
};

/// Keys and values are compressed to vectors that all heads share.
struct LatentSizes {
  std::uint64_t kv_rank = 0;  ///< of keys and values
  std::uint64_t nope = 0;     ///< numbers of a head's query and key without positions
  std::uint64_t rope = 0;     ///< with rotary positions; all heads share those of a key
  std::uint64_t value = 0;    ///< numbers of a head's value
};

/// Chooses the tokens that latent attention sees (DeepSeek sparse attention), or the entries of compressed sparse
/// attention: it scores all of them.
struct IndexerSizes {
  std::uint64_t heads = 0;  ///< 0: none, and attention sees all tokens
  std::uint64_t width = 0;
  std::uint64_t kept = 0;  ///< tokens or entries that each token sees, at most
};

/// How many tokens give an entry of compressed attention.
struct CompressionSizes {
  std::uint64_t sparse = 0;  ///< of Mixer::CompressedSparse
  std::uint64_t heavy = 0;   ///< of Mixer::HeavilyCompressed
};

/// The heads' outputs are compressed in equal groups, each by a product of its own, before the output's product.
struct OutputGroups {
  std::uint64_t count = 0;  ///< divides the heads; 0: outputs are not compressed
  std::uint64_t rank = 0;   ///< numbers of a group then
};

struct DeltaNetSizes {
  std::uint64_t key_heads = 0;
  std::uint64_t value_heads = 0;
  std::uint64_t key_width = 0;
  std::uint64_t value_width = 0;
  std::uint64_t kernel = 0;  ///< of the convolution, in tokens

  std::uint64_t keys() const { return key_heads * key_width; }
  std::uint64_t values() const { return value_heads * value_width; }
};

struct Mamba2Sizes {
  std::uint64_t heads = 0;
  std::uint64_t head_width = 0;
  std::uint64_t state = 0;
  std::uint64_t groups = 0;  ///< of heads with the same input and output matrices
  std::uint64_t kernel = 0;  ///< of the convolution, in tokens

  std::uint64_t inner() const { return heads * head_width; }
  std::uint64_t convolved() const { return inner() + 2 * groups * state; }
};

struct ExpertSizes {
  std::uint64_t count = 0;
  std::uint64_t per_token = 1;
  std::uint64_t intermediate = 0;
  std::uint64_t shared = 0;      ///< width of the shared expert; 0: none
  bool has_shared_gate = false;  ///< a number of each token scales the shared expert's output
  std::uint64_t latent = 0;      ///< the width that routed experts read and write; 0: `hidden`
  // Executor only
  RouterScores scores = RouterScores::Softmax;
  bool normalizes = false;  ///< the weights of a token's experts add up to 1
  double scale = 1;         ///< of the weights, after that
};

/// The model that a file names, which says how work and activations are counted (core/model/models.hpp).
enum class DecoderModel : std::uint8_t {
  Decoder,
  Gpt,   ///< attention counts all S x S pairs, masked ones too, and activations the masks of dropout
  Llama  ///< likewise all pairs, and SwiGLU keeps what its activation gives
};

/// A decoder. Sizes of kinds that no block has are 0.
struct DecoderSizes {
  std::vector<DecoderBlock> blocks = {};
  std::uint64_t hidden = 1;
  std::uint64_t vocabulary = 1;
  std::uint64_t positions = 0;  ///< learned ones; 0: none
  bool has_embedding_norm = false;
  bool tied = false;  ///< the head uses the embedding's matrix
  // Attention
  std::uint64_t heads = 1;
  std::uint64_t kv_heads = 1;
  std::uint64_t head_width = 1;
  std::uint64_t window = 0;
  std::uint64_t chunk = 0;
  HeadNorm head_norm = HeadNorm::None;
  bool has_output_gate = false;  ///< as many numbers as queries scale what heads give
  bool has_sinks = false;        ///< a learned logit of each head that takes part in its softmax
  bool has_shared_kv = false;    ///< the keys of the only head of keys are its values, too; latent attention aside
  std::uint64_t q_rank = 0;      ///< width of compressed queries, of latent attention too; 0: they are not compressed
  OutputGroups output_groups = {};
  CompressionSizes compression = {};
  LatentSizes latent = {};
  IndexerSizes indexer = {};
  DeltaNetSizes delta_net = {};
  Mamba2Sizes mamba2 = {};
  // Feed-forward networks
  std::uint64_t intermediate = 0;
  Activation activation = Activation::Silu;
  bool is_gated = true;  ///< a product of its own scales what the activation gives (SwiGLU)
  ExpertSizes experts = {};
  // All parts
  Norm norm = Norm::Rms;
  NormPlace norm_place = NormPlace::Before;
  bool is_parallel = false;  ///< mixer and feed-forward network read the same residual
  /// Of `hidden` numbers each, of which the residual consists. With several, a hyper-connection makes the input of each
  /// part of a block of them, and mixes them with its output (Zhu et al. 2024, arXiv 2409.19606; Xie et al. 2025, arXiv
  /// 2512.24880); another one makes the input of the head's norm.
  std::uint64_t streams = 1;
  DecoderBiases biases = {};
  // Blocks after the last one that predict tokens further ahead (DeepSeek-V3, arXiv 2412.19437, section 2.2)
  std::vector<DecoderBlock> mtp_blocks = {};
  // Executor only
  double norm_epsilon = 1e-5;
  bool has_zero_centered_gamma = false;  ///< weights of RMS norms are what is added to 1
  double rope_theta = 10'000;            ///< base of the rotary positions
  double window_rope_theta = 10'000;     ///< that of blocks with windows
  RopeScaling rope_scaling = {};
  std::uint64_t rotated = 0;   ///< numbers of each head that turn; 0: all
  double embedding_scale = 1;  ///< of the embedding's rows
  double query_scale = 0;      ///< scores are divided by its root; 0: the width of a query
  double score_cap = 0;        ///< scores are cap · tanh(score / cap); 0: as they are
  double logit_cap = 0;        ///< likewise the head's logits

  Attention attention = Attention::Fused;
  Unit unit = Unit::Block;
  DecoderModel model = DecoderModel::Decoder;
};

/// A layer of a decoder.
struct DecoderLayer {
  enum class Kind : std::uint8_t { Embedding, Block, Attention, FeedForward, Head };

  Kind kind = Kind::Embedding;
  std::uint64_t block =
      0;  ///< of its block, if it is one or in one; blocks of multi-token prediction follow the others
};
/// Layer `layer` of a decoder with `blocks` blocks of two parts.
DecoderLayer decoder_layer(std::size_t layer, std::uint64_t blocks, Unit unit);
/// Layer `layer` of a decoder: with unit operator, a part that a block lacks is no layer. O(blocks).
DecoderLayer decoder_layer(std::size_t layer, const DecoderSizes& sizes);
/// Block `block`, counted over blocks and mtp_blocks.
const DecoderBlock& decoder_block(const DecoderSizes& sizes, std::uint64_t block);
/// How many layers it has.
std::size_t layers_of(const DecoderSizes& sizes);

/// How many tokens give an entry of the mixer; 0: it has no entries.
std::uint64_t compression_of(const DecoderSizes& sizes, Mixer mixer);

/// The pairs of a token and a token or entry that it sees in a sample of `sequence` tokens: a mixer without attention
/// has none. An entry is seen from its last token on.
double seen_pairs(const DecoderSizes& sizes, Mixer mixer, std::uint64_t sequence);
/// Likewise, the pairs of a token and a token or entry that an indexer scores for it; 0 without one.
double scored_pairs(const DecoderSizes& sizes, Mixer mixer, std::uint64_t sequence);
/// The tokens and entries of a sample, seen or not.
std::uint64_t keys_of_sample(const DecoderSizes& sizes, Mixer mixer, std::uint64_t sequence);

}  // namespace isobar
