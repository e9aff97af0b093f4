#include "core/model/model_sizes.hpp"

#include "core/names.hpp"

namespace isobar {

namespace {

/// "flash" is another word for fused.
constexpr NameTable<Attention, 4> attentions = {{{Attention::Unfused, "unfused"},
                                                 {Attention::Recomputed, "recomputed"},
                                                 {Attention::Fused, "fused"},
                                                 {Attention::Fused, "flash"}}};

constexpr NameTable<Unit, 2> units = {{{Unit::Block, "block"}, {Unit::Operator, "operator"}}};

}  // namespace

std::string_view name_of(Attention attention)
{
  return name_in(attentions, attention);
}

std::optional<Attention> attention_from_name(std::string_view name)
{
  return value_in(attentions, name);
}

std::vector<std::string> attention_names()
{
  return names_in(attentions);
}

std::string_view name_of(Unit unit)
{
  return name_in(units, unit);
}

std::optional<Unit> unit_from_name(std::string_view name)
{
  return value_in(units, name);
}

std::vector<std::string> unit_names()
{
  return names_in(units);
}

DecoderLayer decoder_layer(std::size_t layer, std::uint64_t blocks, Unit unit)
{
  using Kind = DecoderLayer::Kind;
  const std::uint64_t layers_of_block = unit == Unit::Block ? 1 : 2;
  if (layer == 0) return {Kind::Embedding, 0};
  if (layer > blocks * layers_of_block) return {Kind::Head, 0};
  const std::uint64_t place = layer - 1;
  if (unit == Unit::Block) return {Kind::Block, place};
  return {place % layers_of_block == 0 ? Kind::Attention : Kind::FeedForward, place / layers_of_block};
}

}  // namespace isobar
