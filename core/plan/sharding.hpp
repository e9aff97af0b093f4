#pragma once

#include "core/model/sharding.hpp"
#include "core/model/workload.hpp"

#include <cstddef>

namespace isobar {

/// Bytes per parameter that each of `replicas` replicas holds throughout a step.
double held_bytes(const ParameterBytes& bytes, Sharding sharding, std::size_t replicas);
/// Bytes per parameter that a replica holds besides from the first backward of its stage to the sum of the gradients:
/// the parts of the others.
double unsummed_gradient_bytes(const ParameterBytes& bytes, Sharding sharding, std::size_t replicas);
/// Bytes per parameter that a replica holds besides while it uses the parameters: the parts of the others.
double gathered_parameter_bytes(const ParameterBytes& bytes, Sharding sharding, std::size_t replicas);

}  // namespace isobar
