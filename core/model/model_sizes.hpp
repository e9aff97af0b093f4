#pragma once

#include "core/model/decoder/decoder_sizes.hpp"
#include "core/spmd/moe_sizes.hpp"

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// The sizes from which a generator of core/model/models.hpp makes layers, and the executor its modules.
namespace isobar {

/// The operators of blocks, in the order in which they run. A block of a gpt or llama has those of `uniform()`. Fused
/// attention computes what lies from Scores to Context in one of them, Context; so does every mixer of a decoder.
enum class BlockOperator {
  Norm1,
  Qkv,      ///< queries, keys and values, with their rotation; of another mixer, the products that read its input
  QkvUp,    ///< of compressed ones, their norms, the products that read these, and the rotation
  Scores,   ///< the product of queries and keys
  Softmax,  ///< with the causal mask
  ScoreDropout,
  Context,     ///< the product of probabilities and values
  Projection,  ///< of the attention's output
  Dropout1,    ///< with the residual; without dropout the residual alone
  Norm2,
  Router,  ///< of experts; with the products into and out of the width that they read and write
  Up,      ///< of a gated network, both products; of experts, that of routed ones, and so on
  Activation,
  Down,
  SharedExperts,
  Dropout2
};
inline constexpr std::size_t operators_of_attention = 9;
inline constexpr std::size_t operators_of_block = 16;

/// Some operators of a block, by BlockOperator.
class BlockOperators {
 public:
  bool has(BlockOperator which) const { return bits_.test(static_cast<std::size_t>(which)); }
  bool has(std::size_t which) const { return bits_.test(which); }
  void remove(BlockOperator which) { bits_.reset(static_cast<std::size_t>(which)); }
  void add(BlockOperator which) { bits_.set(static_cast<std::size_t>(which)); }
  void add(std::size_t which) { bits_.set(which); }
  bool any() const { return bits_.any(); }
  unsigned long bits() const { return bits_.to_ulong(); }
  std::size_t count() const { return bits_.count(); }
  BlockOperators& operator|=(const BlockOperators& more);
  BlockOperators& operator&=(const BlockOperators& allowed);
  /// Those that `others` lack.
  BlockOperators operator-(const BlockOperators& others) const;
  bool operator==(const BlockOperators&) const = default;

  /// Operators first..end-1.
  static BlockOperators range(std::size_t first, std::size_t end);
  /// Those of a block of a gpt or llama.
  static BlockOperators uniform();

 private:
  std::bitset<operators_of_block> bits_;
};

std::string_view name_of(BlockOperator which);
std::optional<BlockOperator> block_operator_from_name(std::string_view name);
std::vector<std::string> block_operator_names();
/// Their names, in order.
std::vector<std::string_view> names_of_operators(const BlockOperators& operators);

/// Operators of blocks as workload files have them: "0-5,9: scores softmax", a text for blocks with the same ones,
/// ascending by first block. The inverse of add_block_operators.
std::vector<std::string> text_of(const std::vector<BlockOperators>& of_blocks);
/// Adds what such a text says to the operators of each block. @throws std::invalid_argument with what is wrong.
void add_block_operators(std::string_view text, std::vector<BlockOperators>& of_blocks);

/// A tensor that is made in a block of a transformer, or comes into it, and the operators that need it.
struct BlockTensor {
  double repeated = 0;  ///< bytes on each of equal shards
  double divided = 0;   ///< bytes of which each shard has its part
  std::optional<BlockOperator> maker = {};
  std::vector<BlockOperator> savers = {};   ///< keep it for their backward pass
  std::vector<BlockOperator> readers = {};  ///< need it to run again, beside the savers
  bool is_routed = false;                   ///< of tokens that come to experts
};

struct BertSizes {
  std::uint64_t encoders = 1;
  std::uint64_t hidden = 1;
  std::uint64_t heads = 1;
  std::uint64_t intermediate = 1;
  std::uint64_t vocabulary = 1;
  std::uint64_t positions = 1;
  std::uint64_t classes = 1;
  Attention attention = Attention::Unfused;
};

struct GptSizes {
  std::uint64_t layers = 1;
  std::uint64_t hidden = 1;
  std::uint64_t heads = 1;
  std::uint64_t intermediate = 1;
  std::uint64_t vocabulary = 1;
  std::uint64_t positions = 1;
  Attention attention = Attention::Unfused;
  Unit unit = Unit::Block;
  bool tied = false;  ///< the head uses the embedding's matrix
};

struct LlamaSizes {
  std::uint64_t layers = 1;
  std::uint64_t hidden = 1;
  std::uint64_t heads = 1;
  std::uint64_t kv_heads = 1;
  std::uint64_t intermediate = 1;
  std::uint64_t vocabulary = 1;
  double rope_theta = 500'000;  ///< base of the rotary positions; Llama 3's
  double norm_epsilon = 1e-5;   ///< added to the mean square of a normalisation
  RopeScaling rope_scaling = {};
  Attention attention = Attention::Fused;
  Unit unit = Unit::Block;
};

struct ResnetSizes {
  std::uint64_t depth = 50;  ///< 50 or 152
  std::uint64_t image = 224;
  std::uint64_t classes = 1000;
};

/// Blocks of each of the four stages: He et al. 2015 (arXiv 1512.03385), table 1.
inline std::array<std::uint64_t, 4> blocks_per_stage(const ResnetSizes& sizes)
{
  return {3, sizes.depth == 50 ? 4U : 8U, sizes.depth == 50 ? 6U : 36U, 3};
}

/// Sizes of the generator that made a workload; none for listed layers, which cannot be executed. Nor can the
/// published graphs of mixtures of experts (MoeSizes::parity).
using ModelSizes =
    std::variant<std::monostate, BertSizes, GptSizes, LlamaSizes, ResnetSizes, spmd::MoeSizes, DecoderSizes>;

}  // namespace isobar
