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

/// The part of `parameters` that each of `replicas` replicas has where they divide them, if `copies` of them, not all,
/// divide those of the experts among them.
double divided_part(double parameters, double of_experts, std::size_t replicas, std::size_t copies);

}  // namespace isobar
