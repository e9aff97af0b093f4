#pragma once

#include <string>
#include <unordered_map>

namespace isobar::sim {

using UnitTable = std::unordered_map<std::string, double>;

/// Units of the attributes of SimGrid's XML elements, in base units (FLOP/s, B/s, s), spelled as SimGrid does
/// (src/xbt/xbt_parse_units.cpp of SimGrid 3.32). Isobar's props have another grammar (core/text/quantity_text.hpp).
struct SimGridUnits {
  UnitTable factors;
  const char* examples;  ///< for messages
};

const SimGridUnits& speed_units();
const SimGridUnits& bandwidth_units();
const SimGridUnits& time_units();

/// Reads a finite number of either sign and its unit, without a space between them, and converts it to base units. Only
/// 0 needs no unit. @throws std::invalid_argument with a message that names no place.
double value_with_unit(const std::string& text, const SimGridUnits& units);

}  // namespace isobar::sim
