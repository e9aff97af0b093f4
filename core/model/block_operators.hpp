#pragma once

#include <bitset>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// The operators of a block of a gpt or llama, in the order in which they run. Fused attention computes what lies from
/// Scores to Context in one of them, Context.
enum class BlockOperator {
  Norm1,
  Qkv,      ///< queries, keys and values, with their rotation
  Scores,   ///< the product of queries and keys
  Softmax,  ///< with the causal mask
  ScoreDropout,
  Context,     ///< the product of probabilities and values
  Projection,  ///< of the attention's output
  Dropout1,    ///< with the residual; without dropout the residual alone
  Norm2,
  Up,  ///< of a gated network, both products
  Activation,
  Down,
  Dropout2
};
inline constexpr std::size_t operators_of_attention = 8;
inline constexpr std::size_t operators_of_block = 13;

/// Some operators of a block, by BlockOperator.
class BlockOperators {
 public:
  bool has(BlockOperator which) const { return bits_.test(static_cast<std::size_t>(which)); }
  bool has(std::size_t which) const { return bits_.test(which); }
  void add(BlockOperator which) { bits_.set(static_cast<std::size_t>(which)); }
  void add(std::size_t which) { bits_.set(which); }
  bool any() const { return bits_.any(); }
  unsigned long bits() const { return bits_.to_ulong(); }
  std::size_t count() const { return bits_.count(); }
  BlockOperators& operator|=(const BlockOperators& more);
  BlockOperators& operator&=(const BlockOperators& allowed);
  bool operator==(const BlockOperators&) const = default;

  /// Operators first..end-1.
  static BlockOperators range(std::size_t first, std::size_t end);

 private:
  std::bitset<operators_of_block> bits_;
};

std::string_view name_of(BlockOperator which);
std::optional<BlockOperator> block_operator_from_name(std::string_view name);
std::vector<std::string> block_operator_names();

/// Operators of blocks as workload files have them: "0-5,9: scores softmax", a text for blocks with the same ones,
/// ascending by first block. The inverse of add_block_operators.
std::vector<std::string> text_of(const std::vector<BlockOperators>& of_blocks);
/// Adds what such a text says to the operators of each block. @throws std::invalid_argument with what is wrong.
void add_block_operators(std::string_view text, std::vector<BlockOperators>& of_blocks);

}  // namespace isobar
