#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::allocators {

/// The shares of devices that divide operators.
enum class ShareRule : std::uint8_t {
  Best,  ///< those of least cost that were found
  Even,
  Speed  ///< in proportion to the devices' speeds
};

std::string_view name_of(ShareRule rule);  ///< "best", "even", "speed"
std::optional<ShareRule> share_rule_from_name(std::string_view name);
std::vector<std::string> share_rule_names();

}  // namespace isobar::allocators
