#include "core/model/sharding.hpp"

#include "core/names.hpp"

namespace isobar {

namespace {

constexpr NameTable<Sharding, 4> shardings = {{{Sharding::None, "none"},
                                               {Sharding::Optimizer, "optimizer"},
                                               {Sharding::Gradients, "gradients"},
                                               {Sharding::Parameters, "parameters"}}};

}  // namespace

std::string_view name_of(Sharding sharding)
{
  return name_in(shardings, sharding);
}
std::optional<Sharding> sharding_from_name(std::string_view name)
{
  return value_in(shardings, name);
}
std::vector<std::string> sharding_names()
{
  return names_in(shardings);
}

}  // namespace isobar
