#include "core/compute/layer_noise.hpp"

#include "core/base/pcg64.hpp"

#include <cstddef>

namespace isobar {

Workload with_noise(Workload workload, double most, std::uint64_t seed)
{
  Pcg64 stream(seed);
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    Layer& layer = workload.layers[i];
    const double factor = 1 + most * (2 * stream.uniform() - 1);
    layer.forward = layer.forward * factor;
    layer.backward = layer.backward * factor;
    layer.backward_weight = layer.backward_weight * factor;
    for (auto& [type, times] : workload.times) {
      times[i].forward = times[i].forward * factor;
      times[i].backward = times[i].backward * factor;
      times[i].backward_weight = times[i].backward_weight * factor;
    }
  }
  return workload;
}

}  // namespace isobar
