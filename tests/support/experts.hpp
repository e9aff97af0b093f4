#pragma once

#include "core/model/workload.hpp"

#include <cstdint>

namespace isobar::testing_support {

/// Gives a layer experts beside what it has: `parameters` of each, a multiple of the units of the layer's split, with
/// `forward` work of all and a third of the work of that of backward passes, and as much of activations as is
/// dispatched.
inline Experts& add_experts(Layer& layer, std::uint64_t count, std::uint64_t parameters, Flops forward,
                            Bytes dispatched)
{
  Experts& experts = layer.experts.emplace();
  experts.count = count;
  experts.per_token = 1;
  experts.parameters = count * parameters;
  experts.forward = forward;
  experts.backward = 2 * forward;
  experts.backward_weight = forward;
  experts.activations = dispatched;
  experts.dispatched = dispatched;
  layer.forward += experts.forward;
  layer.backward += experts.backward;
  layer.backward_weight += experts.backward_weight;
  layer.parameters += experts.parameters;
  layer.activations += experts.activations;
  if (layer.split) {
    layer.split->parameters += experts.parameters;
    layer.split->activations += experts.activations;
  }
  return experts;
}

}  // namespace isobar::testing_support
