#pragma once

#include "core/program/program.hpp"

#include <vector>

namespace isobar {

/// All algorithms of collectives.
inline std::vector<Algorithm> every_algorithm()
{
  std::vector<Algorithm> all;
  for (const auto& name : algorithm_names()) all.push_back(algorithm_from_name(name).value());
  return all;
}

}  // namespace isobar
