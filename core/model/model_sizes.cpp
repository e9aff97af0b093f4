#include "core/model/model_sizes.hpp"

#include "core/names.hpp"
#include "core/text/quantity_text.hpp"
#include "core/text/separated.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

namespace isobar {

namespace {

constexpr NameTable<BlockOperator, operators_of_block> block_operators = {
    {{BlockOperator::Norm1, "norm1"},
     {BlockOperator::Qkv, "qkv"},
     {BlockOperator::QkvUp, "qkv_up"},
     {BlockOperator::Scores, "scores"},
     {BlockOperator::Softmax, "softmax"},
     {BlockOperator::ScoreDropout, "score_dropout"},
     {BlockOperator::Context, "context"},
     {BlockOperator::Projection, "projection"},
     {BlockOperator::Dropout1, "dropout1"},
     {BlockOperator::Norm2, "norm2"},
     {BlockOperator::Router, "router"},
     {BlockOperator::Up, "up"},
     {BlockOperator::Activation, "activation"},
     {BlockOperator::Down, "down"},
     {BlockOperator::SharedExperts, "shared_experts"},
     {BlockOperator::Dropout2, "dropout2"}}};

/// Blocks of a text such as "0-5,9".
std::vector<std::size_t> blocks_from(std::string_view text, std::size_t count)
{
  const auto ranges = ranges_from_text(text);
  if (!ranges) throw std::invalid_argument(fmt::format("\"{}\" names no blocks in order, such as 0-5,9", text));
  if (ranges->back().last >= count) {
    throw std::invalid_argument(fmt::format("block {}; there are 0 to {}", ranges->back().last, count - 1));
  }
  std::vector<std::size_t> blocks;
  for (const auto& [first, last] : *ranges) {
    for (std::size_t block = first; block <= last; ++block) blocks.push_back(block);
  }
  return blocks;
}

}  // namespace

BlockOperators& BlockOperators::operator|=(const BlockOperators& more)
{
  bits_ |= more.bits_;
  return *this;
}

BlockOperators& BlockOperators::operator&=(const BlockOperators& allowed)
{
  bits_ &= allowed.bits_;
  return *this;
}

BlockOperators BlockOperators::operator-(const BlockOperators& others) const
{
  BlockOperators left = *this;
  left.bits_ &= ~others.bits_;
  return left;
}

BlockOperators BlockOperators::range(std::size_t first, std::size_t end)
{
  BlockOperators operators;
  for (std::size_t which = first; which < end; ++which) operators.add(which);
  return operators;
}

BlockOperators BlockOperators::uniform()
{
  BlockOperators operators = range(0, operators_of_block);
  for (const auto which : {BlockOperator::QkvUp, BlockOperator::Router, BlockOperator::SharedExperts}) {
    operators.remove(which);
  }
  return operators;
}

std::string_view name_of(BlockOperator which)
{
  return name_in(block_operators, which);
}

std::optional<BlockOperator> block_operator_from_name(std::string_view name)
{
  return value_in(block_operators, name);
}

std::vector<std::string> block_operator_names()
{
  return names_in(block_operators);
}

std::vector<std::string_view> names_of_operators(const BlockOperators& operators)
{
  std::vector<std::string_view> names;
  for (const auto& [which, name] : block_operators) {
    if (operators.has(which)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> text_of(const std::vector<BlockOperators>& of_blocks)
{
  std::vector<std::string> texts;
  std::vector<bool> is_written(of_blocks.size(), false);
  for (std::size_t block = 0; block < of_blocks.size(); ++block) {
    const BlockOperators& own = of_blocks[block];
    if (is_written[block] || !own.any()) continue;
    std::vector<std::string> ranges;
    for (std::size_t first = block; first < of_blocks.size(); ++first) {
      if (of_blocks[first] != own) continue;
      std::size_t last = first;
      while (last + 1 < of_blocks.size() && of_blocks[last + 1] == own) ++last;
      ranges.push_back(first == last ? fmt::to_string(first) : fmt::format("{}-{}", first, last));
      for (; first < last; ++first) is_written[first] = true;
      is_written[last] = true;
    }
    texts.push_back(fmt::format("{}: {}", fmt::join(ranges, ","), fmt::join(names_of_operators(own), " ")));
  }
  return texts;
}

void add_block_operators(std::string_view text, std::vector<BlockOperators>& of_blocks)
{
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    throw std::invalid_argument(
        fmt::format("\"{}\" has no colon; write blocks and operators as "
                    "\"0-5,9: scores softmax\"",
                    text));
  }
  const auto blocks = blocks_from(text.substr(0, colon), of_blocks.size());
  BlockOperators own;
  for (const auto name : texts_between(text.substr(colon + 1), ' ')) {
    if (name.empty()) continue;
    const auto which = block_operator_from_name(name);
    if (!which) {
      throw std::invalid_argument(
          fmt::format("\"{}\" is no operator of a block; write {}", name, fmt::join(block_operator_names(), ", ")));
    }
    if (own.has(*which)) throw std::invalid_argument(fmt::format("\"{}\" names {} twice", text, name));
    own.add(*which);
  }
  if (!own.any()) {
    throw std::invalid_argument(
        fmt::format("\"{}\" names no operators; write {}", text, fmt::join(block_operator_names(), ", ")));
  }
  for (const std::size_t block : blocks) of_blocks[block] |= own;
}

}  // namespace isobar
