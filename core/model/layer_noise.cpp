#include "core/model/layer_noise.hpp"

#include "core/base/pcg64.hpp"

namespace isobar {

Workload with_noise(Workload workload, double most, std::uint64_t seed)
{
  Pcg64 stream(seed);
  for (auto& layer : workload.layers) {
    const double factor = 1 + most * (2 * stream.uniform() - 1);
    layer.forward = layer.forward * factor;
    layer.backward = layer.backward * factor;
    layer.backward_weight = layer.backward_weight * factor;
  }
  return workload;
}

}  // namespace isobar
