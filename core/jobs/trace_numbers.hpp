#pragma once

#include "core/units.hpp"

#include <cstdint>
#include <optional>
#include <string_view>

namespace isobar {

/// A whole number of decimal digits, at most 2^53; none for another text.
std::optional<std::uint64_t> count_in(std::string_view text);
/// A finite decimal number, not negative and at most 1e15; none for another text.
std::optional<double> number_in(std::string_view text);
/// Seconds since 1970 of "2020-04-01 15:17:00", with T for the blank, fractions of a second and an offset such as
/// +08:00 or Z if there is one; none for another text. Without an offset, UTC.
std::optional<Seconds> moment_in(std::string_view text);

}  // namespace isobar
