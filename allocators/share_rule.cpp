#include "allocators/share_rule.hpp"

#include "core/names.hpp"

namespace isobar::allocators {

namespace {

constexpr NameTable<ShareRule, 3> share_rules = {
    {{ShareRule::Best, "best"}, {ShareRule::Even, "even"}, {ShareRule::Speed, "speed"}}};

}  // namespace

std::string_view name_of(ShareRule rule)
{
  return name_in(share_rules, rule);
}

std::optional<ShareRule> share_rule_from_name(std::string_view name)
{
  return value_in(share_rules, name);
}

std::vector<std::string> share_rule_names()
{
  return names_in(share_rules);
}

}  // namespace isobar::allocators
