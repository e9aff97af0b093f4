#include "sim/scan/simgrid_units.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <utility>

namespace isobar::sim {

namespace {

void add_prefixed(UnitTable& table, const std::string& unit, double factor, double step,
                  std::initializer_list<const char*> prefixes)
{
  table.emplace(unit, factor);
  for (const char* prefix : prefixes) table.emplace(prefix + unit, factor *= step);
}

}  // namespace

const SimGridUnits& speed_units()
{
  static const SimGridUnits units = [] {
    UnitTable table;
    add_prefixed(table, "f", 1, 1000, {"k", "M", "G", "T", "P", "E", "Z", "Y"});
    add_prefixed(table, "flops", 1, 1000, {"kilo", "mega", "giga", "tera", "peta", "exa", "zeta", "yotta"});
    return SimGridUnits{table, "\"9.3Tf\" (f, kf, Mf, Gf, Tf, Pf)"};
  }();
  return units;
}

const SimGridUnits& bandwidth_units()
{
  static const SimGridUnits units = [] {
    UnitTable table;
    for (const auto& [unit, factor] : {std::pair("bps", 0.125), std::pair("Bps", 1.0)}) {
      add_prefixed(table, unit, factor, 1024, {"Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi"});
      add_prefixed(table, unit, factor, 1000, {"k", "M", "G", "T", "P", "E", "Z", "Y"});
    }
    return SimGridUnits{table, "\"1.25GBps\" (Bps, kBps, MBps, GBps; bps for bits)"};
  }();
  return units;
}

const SimGridUnits& time_units()
{
  static const SimGridUnits units = {{{"w", 7 * 24 * 3600.0},
                                      {"d", 24 * 3600.0},
                                      {"h", 3600.0},
                                      {"m", 60.0},
                                      {"s", 1.0},
                                      {"ms", 1e-3},
                                      {"us", 1e-6},
                                      {"ns", 1e-9},
                                      {"ps", 1e-12}},
                                     "\"1.5ms\" (s, ms, us, ns)"};
  return units;
}

double value_with_unit(const std::string& text, const SimGridUnits& units)
{
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str())
    throw std::invalid_argument(
        fmt::format("\"{}\" is not a number; write a number and a unit, such as {}", text, units.examples));
  if (!std::isfinite(number)) throw std::invalid_argument(fmt::format("\"{}\" is not a finite number", text));
  const std::string unit = end;
  if (unit.empty() && number == 0) return 0;  // 0 is the same in every unit
  if (unit.empty())
    throw std::invalid_argument(
        fmt::format("\"{}\" has no unit; write a number and a unit, such as {}", text, units.examples));
  const auto found = units.factors.find(unit);
  if (found == units.factors.end()) {
    const bool spaced = unit.front() == ' ';
    throw std::invalid_argument(fmt::format("\"{}\": unknown unit \"{}\"; write a number and a unit{}, such as {}",
                                            text, unit, spaced ? " without a space" : "", units.examples));
  }
  const double value = number * found->second;
  if (!std::isfinite(value)) throw std::invalid_argument(fmt::format("\"{}\" is not a finite number", text));
  return value;
}

}  // namespace isobar::sim
