#pragma once

#include "core/program/collective.hpp"
#include "tests/support/every_algorithm.hpp"

#include <cstddef>
#include <vector>

/// What tests of rounds and of steps of collectives share.
namespace isobar {

inline std::vector<Bytes> equal(std::size_t ends, double size)
{
  return std::vector<Bytes>(ends, Bytes(size));
}

}  // namespace isobar
