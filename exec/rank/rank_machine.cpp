#include "exec/rank/rank_machine.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "exec/data/mixing.hpp"
#include "exec/device/device.hpp"
#include "schedules/lowering/tiers.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

constexpr std::uint8_t not_a_number = 0xff;  // in each byte

std::size_t in_units(std::size_t extent)
{
  return (extent + ScratchFile::alignment - 1) / ScratchFile::alignment * ScratchFile::alignment;
}

Mailbox::Address address_of(const Instruction& instruction)
{
  return {Payload::Activation, instruction.stage, instruction.microbatch};
}

bool makes_input_gradients(Opcode opcode)
{
  return opcode == Opcode::Backward || opcode == Opcode::BackwardInput;
}

}  // namespace

void PlacePool::add(std::unique_ptr<Place> place)
{
  free_.push_back(place.get());
  places_.push_back(std::move(place));
}

const Place* PlacePool::take()
{
  const std::lock_guard lock(mutex_);
  ensure(!free_.empty(), "an instruction finds the free place that it waited for");
  const Place* const place = free_.back();
  free_.pop_back();
  return place;
}

void PlacePool::give_back(const Place* place)
{
  const std::lock_guard lock(mutex_);
  free_.push_back(place);
}

RankMachine::RankMachine(const Program& program, std::size_t rank, const RankStages& stages, const TierMeters& meters,
                         Options options)
    : rank_(rank), stages_(stages), options_(std::move(options)), passes_(program, rank), host_meter_(meters.host)
{
  for (const auto& [stage, own] : stages.own) {
    Part& part = parts_[stage];
    part.model = own.model.get();
    part.residence = own.residence;
    part.has_replicas = stages.patterns[stage].replicas() > 1;
    part.gradient_extent = own.model->size_of_gradients().extent;
    part.state_extent = in_units(own.model->size_of_state().extent);
  }
  make_device_places(meters);
  make_host_places(meters);
}

/// Each place has room for the largest part that takes it. Gradients that stay on the device have one of their own.
void RankMachine::make_device_places(const TierMeters& meters)
{
  PlaceSize parameters;
  std::size_t parameter_slots = 0;
  PlaceSize passing_gradients;
  std::size_t gradient_slots = 0;
  for (const auto& [stage, part] : parts_) {
    if (part.residence.parameters == Tier::Host) {
      parameters = parameters.with(part.model->size_of_parameters());
      parameter_slots = part.residence.parameter_slots;
    }
    if (part.residence.gradients == Tier::Host) {
      passing_gradients = passing_gradients.with(part.model->size_of_gradients());
      gradient_slots = part.residence.gradient_slots;
    }
  }
  for (std::size_t i = 0; i < parameter_slots; ++i) {
    parameter_places_.push_back(std::make_unique<Place>(options_.device, parameters, meters.device));
  }
  for (std::size_t i = 0; i < gradient_slots; ++i) {
    gradient_places_[i] = std::make_unique<Place>(options_.device, passing_gradients, meters.device);
  }
  for (const auto& [stage, place] : passes_.of_gradients()) {
    Part& part = parts_.at(stage);
    auto& gradients = gradient_places_[place];
    if (!gradients) {
      gradients = std::make_unique<Place>(options_.device, part.model->size_of_gradients(), meters.device);
    }
    part.gradients = gradients.get();
  }
  for (auto& [stage, part] : parts_) {
    if (part.gradients != nullptr) continue;
    kept_gradients_.push_back(std::make_unique<Place>(options_.device, part.model->size_of_gradients(), meters.device));
    part.gradients = kept_gradients_.back().get();
  }
}

void RankMachine::make_host_places(const TierMeters& meters)
{
  const bool copied_by_gpu = is_gpu(options_.device);
  std::vector<Part*> updated;
  PlaceSize gradients;
  PlaceSize state;
  std::size_t states = 0;
  std::uint64_t disk_size = 0;
  for (auto& [stage, part] : parts_) {
    if (part.residence.optimizer == Tier::Device) continue;
    updated.push_back(&part);
    gradients = gradients.with(part.model->size_of_gradients());
    if (part.residence.optimizer != Tier::Disk) continue;
    state = state.with({part.model->size_of_state().bytes, part.state_extent});
    ++states;
    part.offset = disk_size;
    disk_size += part.state_extent;
    meters.disk.take(part.model->size_of_state().bytes);
  }
  const bool wait_for_all = std::any_of(updated.begin(), updated.end(), [this](const Part* part) {
    const UpdateOverlap overlap = part->residence.overlap;
    return overlap == UpdateOverlap::None || overlap == UpdateOverlap::Delayed || options_.needs_facts;
  });
  const bool has_one_each = wait_for_all || updated.size() <= schedules::host_gradient_slots;
  const auto shared = std::make_shared<PlacePool>();
  for (std::size_t i = 0; !has_one_each && i < schedules::host_gradient_slots; ++i) {
    shared->add(std::make_unique<Place>("cpu", gradients, meters.host, copied_by_gpu));
  }
  for (Part* part : updated) {
    part->waiting_places = has_one_each ? std::make_shared<PlacePool>() : shared;
    if (!has_one_each) continue;
    part->waiting_places->add(
        std::make_unique<Place>("cpu", part->model->size_of_gradients(), meters.host, copied_by_gpu));
  }
  for (std::size_t i = 0; i < std::min(states, schedules::staged_states); ++i) {
    staging_.add(std::make_unique<Place>("cpu", state, meters.host));
  }
  if (disk_size == 0) return;  // sgd has no state
  disk_.emplace(scratch_folder(options_.scratch), disk_size);
}

void RankMachine::switch_to(const Program& program)
{
  passes_ = PassPlaces(program, rank_);
}

void RankMachine::run(std::uint64_t step, std::uint64_t position, const Instruction& instruction, Stream& stream,
                      const Facts& facts)
{
  Part& part = parts_.at(instruction.stage);
  const Seconds begin = steady_time();
  const auto access = emulated_access(instruction, begin);
  delay(step, position, instruction, 0);
  switch (instruction.opcode) {
    case Opcode::Load:
      load(instruction, stream);
      break;
    case Opcode::Store:
      store(instruction, stream);
      break;
    case Opcode::Update:
      update(step, part, facts);
      break;
    case Opcode::Read:
      read(part);
      break;
    case Opcode::Write:
      write(part);
      break;
    default:
      throw std::logic_error("an instruction that no machine has");
  }
  delay(step, position, instruction, 1);
  if (options_.emulated) pace(begin, instruction, access.get());
}

void RankMachine::load(const Instruction& instruction, Stream& stream)
{
  Part& part = parts_.at(instruction.stage);
  if (instruction.payload == Payload::Activation) {
    const Message kept = kept_.take(address_of(instruction));
    Message message;
    message.differentiable = kept.differentiable;
    for (const auto& tensor : kept.tensors) {
      message.tensors.push_back(tensor.to(at::Device(options_.device), /*non_blocking=*/true, /*copy=*/true));
    }
    message.ready = stream.record();
    // A GPU reads the host's copy later; LibTorch keeps pinned memory until it has.
    returned_.put(address_of(instruction), std::move(message));
  } else if (instruction.pass == Opcode::Update) {
    part.model->refresh_parameters();
  } else {
    const Place& place = *parameter_places_.at(instruction.place);
    leave(place);
    part.model->load_parameters(place);
  }
}

void RankMachine::store(const Instruction& instruction, Stream& stream)
{
  Part& part = parts_.at(instruction.stage);
  if (instruction.payload == Payload::Activation) {
    const Message message = leaving_.take(address_of(instruction));
    stream.await(message);
    const MeteredThread on_host(host_meter_);
    Message kept;
    kept.differentiable = message.differentiable;
    for (const auto& tensor : message.tensors) {
      const auto options =
          at::TensorOptions(tensor.scalar_type()).device(at::kCPU).pinned_memory(is_gpu(options_.device));
      kept.tensors.push_back(at::empty_like(tensor, options).copy_(tensor, /*non_blocking=*/true));
    }
    kept_.put(address_of(instruction), std::move(kept));
  } else if (instruction.payload == Payload::Parameter) {
    const Place& place = *parameter_places_.at(passes_.of_stored_parameters(instruction));
    part.model->store_parameters(place);
    leave(place);
  } else {
    const Place* const waiting = part.waiting_places->take();
    leave(*waiting);
    copy_memory(*part.gradients, *waiting, part.gradient_extent);
    part.waiting = waiting;
    leave(*part.gradients);
  }
}

void RankMachine::update(std::uint64_t step, Part& part, const Facts& facts)
{
  const bool is_delayed = part.residence.overlap == UpdateOverlap::Delayed;
  const Place* const gradients = std::exchange(part.waiting, nullptr);
  if (gradients == nullptr) {
    ensure(is_delayed, "an update finds the gradients that it waited for");
    return;  // the first step of a run has none of the step before
  }
  const std::uint64_t of_gradients = is_delayed ? step - 1 : step;
  part.model->update_on_machine(of_gradients, facts(of_gradients), *gradients, part.staged);
  leave(*gradients);
  part.waiting_places->give_back(gradients);
}

void RankMachine::read(Part& part)
{
  const Place* const place = staging_.take();
  leave(*place);
  read_state(part, *place);
  part.staged = place;
}

void RankMachine::write(Part& part)
{
  const Place* const place = std::exchange(part.staged, nullptr);
  write_state(part, *place);
  leave(*place);
  staging_.give_back(place);
}

void RankMachine::read_state(const Part& part, const Place& place)
{
  if (disk_) disk_->read(part.offset, {place.data(), part.state_extent});
}

void RankMachine::write_state(const Part& part, const Place& place)
{
  if (disk_) disk_->write(part.offset, std::span<const std::byte>(place.data(), part.state_extent));
}

void RankMachine::before_pass(std::uint64_t position, const Instruction& pass, Stream& stream)
{
  is_computing_ = true;
  const Part& part = parts_.at(pass.stage);
  if (const auto place = passes_.of_parameters(position)) part.model->use_parameters(*parameter_places_.at(*place));
  if (passes_.begins_backwards(pass, position)) part.model->use_gradients(*part.gradients);
  if (part.residence.activations == Tier::Host && makes_input_gradients(pass.opcode)) {
    const Message kept = returned_.take(address_of(pass));
    stream.await(kept);
    part.model->give_kept(pass.microbatch, kept);
  }
}

void RankMachine::after_pass(std::uint64_t step, std::uint64_t position, const Instruction& pass, Stream& stream,
                             bool is_training)
{
  const Part& part = parts_.at(pass.stage);
  if (part.residence.activations == Tier::Host && pass.opcode == Opcode::Forward && is_training) {
    Message kept = part.model->take_kept(pass.microbatch);
    kept.ready = stream.record();
    leaving_.put(address_of(pass), std::move(kept));
  }
  // Those of replicas are kept when they have been added up.
  if (!part.has_replicas && passes_.ends_backwards(pass, position)) part.model->keep_gradient_facts(step);
  is_computing_ = false;
  for (const std::size_t place : passes_.freed_after(position)) leave(*parameter_places_.at(place));
}

void RankMachine::with_state(std::uint32_t stage, const std::function<void()>& work)
{
  Part& part = parts_.at(stage);
  if (part.residence.optimizer == Tier::Device) return work();
  part.model->show_waiting_gradients(part.waiting);
  with_disk(part, work);
  part.model->show_waiting_gradients(nullptr);
  if (part.waiting != nullptr) return;
  const Place* const place = part.waiting_places->take();
  if (part.model->take_waiting_gradients(*place)) {
    part.waiting = place;
  } else {
    part.waiting_places->give_back(place);
  }
}

void RankMachine::with_disk(Part& part, const std::function<void()>& work)
{
  if (part.residence.optimizer != Tier::Disk) return work();
  const Place* const place = staging_.take();
  read_state(part, *place);
  part.model->use_state(*place);
  work();
  if (part.model->keep_state_in(*place)) write_state(part, *place);
  staging_.give_back(place);
}

/// The part of an emulated disk that the instruction takes from its beginning; null if it takes none.
std::unique_ptr<SharedDisk::Access> RankMachine::emulated_access(const Instruction& instruction, Seconds begin) const
{
  const bool is_read = instruction.opcode == Opcode::Read;
  if (!options_.emulated || (!is_read && instruction.opcode != Opcode::Write)) return nullptr;
  const auto kind = is_read ? SharedDisk::Kind::Read : SharedDisk::Kind::Write;
  return std::make_unique<SharedDisk::Access>(*options_.emulated->disk, kind, instruction.size, begin);
}

/// Waits until an instruction has taken its time on the emulated machine. An update is slower while the device
/// computes.
void RankMachine::pace(Seconds begin, const Instruction& instruction, SharedDisk::Access* access) const
{
  constexpr Seconds longest_nap(1e-3);
  const MachineRates& rates = options_.emulated->rates;
  const auto wait_while = [&](const auto& left_at) {
    for (Seconds left = left_at(steady_time()); left > Seconds(0); left = left_at(steady_time())) {
      throw_if_interrupted();
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, longest_nap).value));
    }
  };
  const auto wait_until = [&](Seconds end) { wait_while([&](Seconds now) { return end - now; }); };
  switch (instruction.opcode) {
    case Opcode::Load:
      return wait_until(begin + rates.in.time_of(instruction.size) +
                        (instruction.pass == Opcode::Backward ? rates.backward_delay : Seconds(0)));
    case Opcode::Store:
      return wait_until(begin + rates.out.time_of(instruction.size));
    case Opcode::Read:
    case Opcode::Write:
      return wait_while([&](Seconds now) { return access->left(now); });
    default:
      break;
  }
  Seconds left = instruction.time;
  for (Seconds now = begin; left > Seconds(0);) {
    const double rate = is_computing_ ? rates.busy_update_speed / rates.update_speed : 1;
    wait_until(now + std::min(left / rate, longest_nap));
    const Seconds then = steady_time();
    left -= rate * (then - std::exchange(now, then));
  }
}

void RankMachine::delay(std::uint64_t step, std::uint64_t position, const Instruction& instruction,
                        std::uint64_t which) const
{
  if (!options_.disturbed) return;
  constexpr std::uint64_t longest_us = 1000;
  const std::uint64_t random = mixed({*options_.disturbed, rank_, instruction.lane, step, position, which});
  std::this_thread::sleep_for(std::chrono::microseconds(random % longest_us));
}

void RankMachine::leave(const Place& place) const
{
  if (options_.disturbed) place.fill(not_a_number);
}

}  // namespace isobar::exec
