#pragma once

#include <string>
#include <unordered_map>

namespace isobar::sim {

using UnitTable = std::unordered_map<std::string, double>;

/// What the attributes of SimGrid's own XML elements are measured in, each in base units (FLOP/s, B/s, s), as SimGrid
/// spells it (src/xbt/xbt_parse_units.cpp of SimGrid 3.32). Isobar's props have another grammar
/// (core/base/quantity_text.hpp).
struct SimGridUnits {
  UnitTable factors;
  const char* examples;  ///< for messages
};

const SimGridUnits& speed_units();
const SimGridUnits& bandwidth_units();
const SimGridUnits& time_units();

/// A number and a unit, without a space between them, in base units; finite, of either sign. Only 0 needs no unit.
/// @throws std::invalid_argument with the fault in words, without a place.
double value_with_unit(const std::string& text, const SimGridUnits& units);

}  // namespace isobar::sim
