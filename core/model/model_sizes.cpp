#include "core/model/model_sizes.hpp"

#include "core/names.hpp"

namespace isobar {

namespace {

constexpr NameTable<Attention, 2> attentions = {{{Attention::Unfused, "unfused"}, {Attention::Fused, "fused"}}};

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

}  // namespace isobar
