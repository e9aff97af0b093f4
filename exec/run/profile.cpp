#include "exec/run/profile.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "exec/device/device.hpp"
#include "exec/device/memory_meter.hpp"
#include "exec/device/operator_times.hpp"
#include "exec/device/place.hpp"
#include "exec/device/stream.hpp"
#include "exec/launch/device_name.hpp"
#include "exec/model/batch.hpp"
#include "exec/stage/stage_model.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

/// Measurements of a kind of layer, and its outputs.
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
  return values[static_cast<std::size_t>(std::lround(fraction * static_cast<double>(values.size() - 1)))];
}

/// A stand-in for the gradient that the later layers would send.
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

Bytes size_of(const Tensors& tensors)
{
  std::size_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.nbytes();
  return Bytes(static_cast<double>(bytes));
}

/// Passes of a layer whose gradients have their memory, as in a later micro-batch of a step.
void measure_memory(StageModel& model, const Message& input, MemoryMeter& meter, const std::string& device,
                    LayerProfile& profile)
{
  const Place place(device, model.size_of_gradients(), meter);
  model.use_gradients(place);
  const Bytes before = meter.current();
  meter.forget_peak();
  const Message output = model.forward(0, 0, input);
  // The next layer counts the output among what it keeps, but has freed it when this one's backward begins.
  const Bytes kept = meter.current() - before - size_of(output.tensors);
  const Message gradient = gradient_for(output);
  const Message passed = model.backward(0, gradient);
  profile.activations = kept + size_of(input.tensors);
  // Gradients between layers are counted apart.
  const Bytes gradients = size_of(gradient.tensors) + size_of(passed.tensors);
  profile.workspace = std::max(Bytes(0), meter.peak() - before - kept - gradients);
  model.update(0, {});
}

/// When the passes of one repetition began and ended.
struct Repetition {
  Event forward_begin, forward_end, backward_begin, backward_end, update_end;
};

Kind measure(const Workload& workload, std::size_t layer, const Message& input, const ProfileOptions& options)
{
  MemoryMeter meter(Bytes(0));
  Stream stream(options.device, Stream::Kind::Computations, meter);
  const Stream::Scope scope(stream);
  StageOptions stage;
  stage.first_layer = stage.last_layer = layer;
  stage.seed = options.seed;
  stage.device = options.device;
  const auto batches = synthetic_batches(workload);
  stage.batches = batches.get();
  StageModel model(workload, stage);
  const bool has_loss = layer + 1 == workload.layers.size();

  Kind kind;
  kind.profile.name = workload.layers[layer].name;
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> update;
  std::vector<double> both;
  // On a CPU processor time, which other processes do not lengthen and which emulation stretches.
  const auto record = [&] { return stream.is_on_gpu() ? stream.record() : Event(thread_time()); };
  const auto count = [&](const Repetition& times) {
    forward.push_back((times.forward_end.time() - times.forward_begin.time()).value);
    backward.push_back((times.backward_end.time() - times.backward_begin.time()).value);
    update.push_back((times.update_end.time() - times.backward_end.time()).value);
    both.push_back(forward.back() + backward.back());
  };
  std::optional<Repetition> last;  // counted after the next one is queued, so that the device never waits for the host
  for (std::size_t i = 0; i < options.warm_up + options.repetitions; ++i) {
    throw_if_interrupted();
    kind.output = {};
    Repetition times;
    times.forward_begin = record();
    kind.output = model.forward(i, 0, input);
    times.forward_end = record();
    const Message gradient = gradient_for(kind.output);
    times.backward_begin = record();
    model.backward(0, gradient);
    times.backward_end = record();
    model.update(i, {});
    times.update_end = record();
    if (has_loss) model.take_loss();
    if (last) count(*last);
    if (i >= options.warm_up) last = times;
    options.on_pass();
  }
  count(*last);
  kind.profile.peak = meter.peak();
  measure_memory(model, input, meter, options.device, kind.profile);
  if (has_loss) model.take_loss();
  kind.profile.forward = Seconds(quantile(forward, 0.5));
  kind.profile.backward = Seconds(quantile(backward, 0.5));
  kind.profile.update = Seconds(quantile(update, 0.5));
  kind.profile.spread_fraction = (quantile(both, 0.75) - quantile(both, 0.25)) / quantile(both, 0.5);
  return kind;
}

/// Sets type and memory of a profile or a table.
template <typename Measured>
void describe_device(const ProfileOptions& options, Measured& measured)
{
  if (is_gpu(options.device)) {
    const GpuFacts gpu = facts_of_gpu(options.device);
    measured.device = gpu.name;
    measured.memory = gpu.memory;
  } else {
    measured.device = processor_name(options.threads);
    measured.memory = machine_memory().total;
  }
}

DeviceProfile measure_on_open_device(const Workload& workload, const ProfileOptions& options)
{
  DeviceProfile profile;
  describe_device(options, profile);
  profile.dtype = workload.dtype;
  profile.micro_batch = workload.micro_batch;
  profile.sequence = workload.sequence;

  const std::vector<std::size_t> first = first_of_kind(workload);
  std::vector<Kind> kinds(first.size());
  Message passed;
  passed.tensors = synthetic_inputs(workload, {options.seed, 0, 0}, options.device);
  passed.differentiable.assign(passed.tensors.size(), false);
  Flops work;
  Seconds time;
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    const Kind& kind = kinds[first[layer]];
    if (first[layer] == layer) kinds[layer] = measure(workload, layer, passed, options);
    LayerProfile layer_profile = kind.profile;
    layer_profile.name = workload.layers[layer].name;
    work += workload.layers[layer].forward + workload.layers[layer].backward;
    time += layer_profile.forward + layer_profile.backward;
    profile.layers.push_back(std::move(layer_profile));
    passed = kind.output;
  }
  profile.speed = work / time;
  return profile;
}

/// Opens the device and measures it.
template <typename Measure>
auto measure_on_device(const ProfileOptions& options, Measure measure)
{
  meter_cpu_memory();
  open_device(options.device);
  at::set_num_threads(static_cast<int>(options.threads));
  try {
    return measure();
  } catch (const c10::OutOfMemoryError& error) {
    throw EnvironmentError(fmt::format("out of memory: {}", shown(error.what_without_backtrace(), 300)));
  }
}

}  // namespace

DeviceProfile measure_profile(const Workload& workload, const ProfileOptions& options)
{
  return measure_on_device(options, [&] { return measure_on_open_device(workload, options); });
}

compute::OperatorTable measure_operators(const Workload& workload, const ProfileOptions& options)
{
  return measure_on_device(options, [&] {
    compute::OperatorTable table;
    describe_device(options, table);
    OperatorTiming timing;
    timing.device = options.device;
    timing.memory = table.memory;
    timing.seed = options.seed;
    timing.repetitions = options.repetitions;
    timing.on_part = options.on_pass;
    time_operators(workload, timing, table);
    return table;
  });
}

std::vector<std::size_t> first_of_kind(const Workload& workload)
{
  std::map<std::string, std::size_t> kinds;
  std::vector<std::size_t> first;
  for (const auto& layer : workload.layers) first.push_back(kinds.emplace(kind_of(layer), first.size()).first->second);
  return first;
}

std::size_t passes_of(const Workload& workload, const ProfileOptions& options)
{
  const std::vector<std::size_t> first = first_of_kind(workload);
  const std::size_t kinds = std::set(first.begin(), first.end()).size();
  return kinds * (options.warm_up + options.repetitions);
}

}  // namespace isobar::exec
