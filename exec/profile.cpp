#include "exec/profile.hpp"

#include "exec/batch.hpp"
#include "exec/device_name.hpp"
#include "exec/interpreter.hpp"
#include "exec/memory_meter.hpp"
#include "exec/stage_model.hpp"

#include <fmt/format.h>

#include <torch/torch.h>

#include <unistd.h>
#include <algorithm>
#include <map>
#include <utility>

namespace isobar::exec {

namespace {

/// What a kind of layer took, and what it hands on.
struct Kind {
  LayerProfile profile;
  Message output;
};

std::string kind_of(const Layer& layer)
{
  std::string name = layer.name;
  std::erase_if(name, [](unsigned char letter) { return std::isdigit(letter); });
  return fmt::format("{} {} {} {} {}", name, layer.forward.value, layer.parameters, layer.activations.value,
                     layer.output.value);
}

double quantile(std::vector<double> values, double fraction)
{
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(fraction * static_cast<double>(values.size() - 1) + 0.5)];
}

/// As if the layers behind had sent it back.
Message gradient_for(const Message& output)
{
  Message gradient;
  for (std::size_t i = 0; i < output.tensors.size(); ++i) {
    if (!output.differentiable[i]) continue;
    gradient.tensors.push_back(at::full_like(output.tensors[i], 1e-4));
    gradient.differentiable.push_back(false);
  }
  return gradient;
}

Kind measure(const Workload& workload, std::size_t layer, const Message& input, const ProfileOptions& options)
{
  MemoryMeter meter("the layer", Bytes(0));
  const MeteredThread metered(meter);
  StageOptions stage;
  stage.first_layer = stage.last_layer = layer;
  stage.seed = options.seed;
  stage.device = options.device;
  StageModel model(workload, stage);
  const bool has_loss = layer + 1 == workload.layers.size();

  Kind kind;
  kind.profile.name = workload.layers[layer].name;
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> update;
  std::vector<double> both;
  for (std::size_t i = 0; i < options.warm_up + options.repetitions; ++i) {
    kind.output = {};
    const Bytes before = meter.current();
    const double t0 = steady_time().value;
    kind.output = model.forward(i, 0, input);
    const double t1 = steady_time().value;
    kind.profile.activations = meter.current() - before;
    const Message gradient = gradient_for(kind.output);
    const double t2 = steady_time().value;
    model.backward(0, gradient);
    const double t3 = steady_time().value;
    model.update({});
    const double t4 = steady_time().value;
    if (has_loss) model.take_loss();
    if (i < options.warm_up) continue;
    forward.push_back(t1 - t0);
    backward.push_back(t3 - t2);
    update.push_back(t4 - t3);
    both.push_back(t1 - t0 + t3 - t2);
  }
  kind.profile.forward = Seconds(quantile(forward, 0.5));
  kind.profile.backward = Seconds(quantile(backward, 0.5));
  kind.profile.update = Seconds(quantile(update, 0.5));
  kind.profile.spread_fraction = (quantile(both, 0.75) - quantile(both, 0.25)) / quantile(both, 0.5);
  return kind;
}

}  // namespace

DeviceProfile measure_profile(const Workload& workload, const ProfileOptions& options)
{
  meter_cpu_memory();
  at::set_num_threads(static_cast<int>(options.threads));
  DeviceProfile profile;
  profile.device = processor_name(options.threads);
  profile.memory = Bytes(static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  profile.dtype = workload.dtype;
  profile.micro_batch = workload.micro_batch;
  profile.sequence = workload.sequence;

  std::map<std::string, Kind> kinds;
  Message passed;
  passed.tensors = synthetic_inputs(workload, {options.seed, 0, 0}, options.device);
  passed.differentiable.assign(passed.tensors.size(), false);
  Flops work;
  Seconds time;
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    const std::string name = kind_of(workload.layers[layer]);
    auto found = kinds.find(name);
    if (found == kinds.end()) found = kinds.emplace(name, measure(workload, layer, passed, options)).first;
    LayerProfile of_layer = found->second.profile;
    of_layer.name = workload.layers[layer].name;
    work += workload.layers[layer].forward + workload.layers[layer].backward;
    time += of_layer.forward + of_layer.backward;
    profile.layers.push_back(std::move(of_layer));
    passed = found->second.output;
  }
  profile.speed = work / time;
  return profile;
}

}  // namespace isobar::exec
