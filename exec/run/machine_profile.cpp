#include "exec/run/machine_profile.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/pcg64.hpp"
#include "core/base/threads.hpp"
#include "core/errors.hpp"
#include "exec/device/device.hpp"
#include "exec/device/stream.hpp"
#include "exec/launch/device_name.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/stage/stage_model.hpp"
#include "exec/stage/stage_optimizer.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

/// Median time of a copy.
Seconds copy_time(Stream& stream, const at::Tensor& to, const at::Tensor& from)
{
  constexpr int copies = 11;
  std::vector<Seconds> times;
  for (int i = 0; i <= copies; ++i) {
    throw_if_interrupted();
    const Event begin = stream.record();
    to.copy_(from, /*non_blocking=*/true);
    const Event end = stream.record();
    if (i > 0) times.push_back(end.time() - begin.time());  // the first one warms up
  }
  std::nth_element(times.begin(), times.begin() + copies / 2, times.end());
  return times[copies / 2];
}

/// Copies of the bytes of one tensor to another.
CopyProfile copies_between(Stream& stream, const at::Tensor& to, const at::Tensor& from)
{
  constexpr std::int64_t small = 4096;
  CopyProfile profile;
  profile.latency = copy_time(stream, to.narrow(0, 0, small), from.narrow(0, 0, small));
  const Bytes size(static_cast<double>(from.nbytes()));
  profile.bandwidth = size / (copy_time(stream, to, from) - profile.latency);
  return profile;
}

void measure_copies(const std::string& device, MachineProfile& machine)
{
  constexpr std::int64_t size = std::int64_t{1} << 28;
  MemoryMeter meter(Bytes(0));
  Stream stream(device, Stream::Kind::Transfers, meter);
  const Stream::Scope scope(stream);
  const auto of_device = at::zeros({size}, at::TensorOptions(at::Device(device)).dtype(at::kByte));
  const auto of_machine = at::zeros({size}, at::TensorOptions(at::kByte).pinned_memory(is_gpu(device)));
  machine.in = copies_between(stream, of_device, of_machine);
  machine.out = copies_between(stream, of_machine, of_device);
}

/// The layer that stands for the kind with the most parameters of the workload.
std::size_t most_updated_layer(const Workload& workload)
{
  const std::vector<std::size_t> first = first_of_kind(workload);
  std::vector<std::uint64_t> parameters(first.size());
  for (std::size_t i = 0; i < first.size(); ++i) parameters[first[i]] += workload.layers[i].parameters;
  return static_cast<std::size_t>(std::max_element(parameters.begin(), parameters.end()) - parameters.begin());
}

/// A layer's parameters in the machine's memory, with gradients, and their optimizer.
class UpdatedLayer {
 public:
  UpdatedLayer(const Workload& workload, std::size_t layer, std::uint64_t seed)
      : rate_(workload.training.learning_rate),
        work_(static_cast<double>(workload.layers[layer].parameters) * update_flops_per_parameter(workload.optimizer)),
        module_(make_layer_module(workload, layer, seed, "cpu")),
        optimizer_(workload, module_->parameters())
  {
    constexpr double some_gradient = 1e-4;
    for (auto& parameter : module_->parameters()) parameter.mutable_grad() = at::full_like(parameter, some_gradient);
  }

  /// Work of updates over their mean time, in which all that disturbs them counts.
  FlopsPerSecond update_speed(const ProfileOptions& options)
  {
    constexpr Seconds least(0.5);
    for (std::size_t i = 0; i < options.warm_up; ++i) update();
    const auto begin = Clock::now();
    std::size_t updates = 0;
    for (; updates < options.repetitions || time_since(begin) < least; ++updates) update();
    return static_cast<double>(updates) * work_ / time_since(begin);
  }

 private:
  void update()
  {
    throw_if_interrupted();
    optimizer_.step(rate_);
  }

  double rate_;
  Flops work_;
  std::unique_ptr<LayerModule> module_;
  StageOptimizer optimizer_;
};

/// Forward passes of each kind of layer of a workload.
class ForwardPasses {
 public:
  ForwardPasses(const Workload& workload, const ProfileOptions& options) : batches_(synthetic_batches(workload))
  {
    const std::vector<std::size_t> first = first_of_kind(workload);
    std::vector<Message> outputs(first.size());
    Message passed;
    passed.tensors = synthetic_inputs(workload, {options.seed, 0, 0}, options.device);
    passed.differentiable.assign(passed.tensors.size(), false);
    for (std::size_t layer = 0; layer < first.size(); ++layer) {
      if (first[layer] == layer) {
        StageOptions stage;
        stage.first_layer = stage.last_layer = layer;
        stage.seed = options.seed;
        stage.device = options.device;
        stage.batches = batches_.get();
        passes_.push_back({std::make_unique<StageModel>(workload, stage), passed});
        outputs[layer] = pass(passes_.back());
      }
      passed = outputs[first[layer]];
    }
  }

  void pass_all()
  {
    for (auto& each : passes_) pass(each);
  }

 private:
  struct Pass {
    std::unique_ptr<StageModel> model;
    Message input;
  };

  Message pass(Pass& each) { return each.model->evaluate(*batches_, 0, 0, each.input); }

  std::unique_ptr<BatchSource> batches_;
  std::vector<Pass> passes_;
};

/// Calls `measure` while another thread has the device compute forward passes.
void while_computing(const Workload& workload, const ProfileOptions& options, const std::function<void()>& measure)
{
  std::atomic<bool> computes = false;
  std::packaged_task<void(std::stop_token)> computation([&](const std::stop_token& stop) {
    MemoryMeter meter(Bytes(0));
    Stream stream(options.device, Stream::Kind::Computations, meter);
    const Stream::Scope scope(stream);
    ForwardPasses passes(workload, options);
    Event previous = stream.record();
    previous.wait();
    computes = true;
    while (!stop.stop_requested()) {
      passes.pass_all();
      const Event end = stream.record();
      previous.wait();  // the host is a round ahead, so that the device never waits for it
      previous = end;
    }
    previous.wait();
  });
  std::future<void> end = computation.get_future();
  std::jthread thread = start_thread([&](const std::stop_token& stop) { computation(stop); });
  constexpr std::chrono::milliseconds nap(1);
  while (!computes && end.wait_for(nap) != std::future_status::ready) {
  }
  if (computes) measure();
  thread.request_stop();
  end.get();
}

std::unique_ptr<std::byte, decltype(&std::free)> aligned_block(std::size_t size)
{
  auto* block = static_cast<std::byte*>(std::aligned_alloc(ScratchFile::alignment, size));
  ensure(block != nullptr, "a machine that trains a model has memory for a block");
  return {block, &std::free};
}

DiskProfile measure_disk(ScratchFile& file)
{
  constexpr std::size_t size = std::size_t{8} << 20;
  const auto memory = aligned_block(size);
  const std::span block(memory.get(), size);
  Pcg64 random(1);  // no file system compresses that
  for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
    const std::uint64_t number = random.next();
    std::memcpy(block.data() + i, &number, sizeof number);
  }
  const auto rate_of = [&](const std::function<void(std::uint64_t)>& access) {
    const auto begin = Clock::now();
    for (std::uint64_t offset = 0; offset < file.size(); offset += size) access(offset);
    file.flush();
    return Bytes(static_cast<double>(file.size())) / time_since(begin);
  };
  const auto write = [&](std::uint64_t offset) { file.write(offset, block); };
  DiskProfile disk;
  rate_of(write);  // the first writes to a place take longer
  disk.write = rate_of(write);
  disk.read = rate_of([&](std::uint64_t offset) { file.read(offset, block); });
  disk.capacity = file.capacity();
  disk.is_direct = file.is_direct();
  return disk;
}

}  // namespace

MachineProfile measure_machine(const Workload& workload, const ProfileOptions& options, ScratchFile* scratch)
{
  open_device(options.device);
  at::set_num_threads(static_cast<int>(options.threads));
  MachineProfile machine;
  machine.processor = processor_name(options.threads);
  machine.memory = machine_memory().total;
  try {
    measure_copies(options.device, machine);
    options.on_pass();
    UpdatedLayer layer(workload, most_updated_layer(workload), options.seed);
    machine.update_speed = layer.update_speed(options);
    options.on_pass();
    while_computing(workload, options, [&] { machine.busy_update_speed = layer.update_speed(options); });
    options.on_pass();
  } catch (const c10::OutOfMemoryError& error) {
    throw EnvironmentError(fmt::format("out of memory: {}", shown(error.what_without_backtrace(), 300)));
  }
  if (scratch != nullptr) machine.disk = measure_disk(*scratch);
  options.on_pass();
  return machine;
}

}  // namespace isobar::exec
