#include "exec/stage/exchanged_passes.hpp"

#include "core/failure.hpp"
#include "exec/device/autocast.hpp"
#include "exec/device/memory_meter.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace isobar::exec {

ExchangedPasses::ExchangedPasses(const Workload& workload, const StageOptions& options, std::string name,
                                 std::size_t updates)
    : workload_(workload),
      options_(options),
      name_(std::move(name)),
      updates_(updates),
      recomputes_(std::binary_search(options.recomputed.begin(), options.recomputed.end(), options.first_layer))
{
}

ExchangedPasses::~ExchangedPasses() = default;

ExchangedPasses::InFlight& ExchangedPasses::in_flight(std::uint64_t microbatch)
{
  const std::lock_guard lock(mutex_);
  return *in_flight_.at(microbatch);
}

void ExchangedPasses::forget(const InFlight& own)
{
  const std::lock_guard lock(mutex_);
  in_flight_.erase(own.key.microbatch);
  changed_.notify_all();
}

template <typename IsOver>
void ExchangedPasses::await(IsOver is_over)
{
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_over() || is_cancelled_; });
  if (!is_cancelled_) return;
  Failure failure;
  failure.kind = Failure::Kind::Cancelled;
  failure.text = "exchanges of a layer: another rank has failed";
  throw_failure(failure);
}

void ExchangedPasses::run(const InFlight& own, const std::function<void()>& work) const
{
  const at::AutoGradMode mode(records(own));
  const Autocast autocast(workload_.dtype, options_.device);
  const MemoryPlace place(name_);
  work();
}

Message ExchangedPasses::message_to_next(const InFlight& own, const at::Tensor& output)
{
  Message message = message_of({output});
  message.differentiable = {own.key.drops};
  return message;
}

std::optional<Message> ExchangedPasses::exchange(ShardRole role, const RandomKey& key, const Meeting& meeting,
                                                 const std::function<Message()>& take)
{
  const bool is_forward = pass_of(role) == ShardPass::Forward;
  const bool is_before = is_before_pass(role);
  const auto has_begun = [&] {
    const std::lock_guard lock(mutex_);
    const auto found = in_flight_.find(key.microbatch);
    return found != in_flight_.end() && found->second->key.step == key.step;
  };
  if (is_forward && is_before && !has_begun()) {
    // The first step of a run has no update before it. An evaluation has none, and may be a step ahead.
    if (key.drops) await([&] { return key.step <= *(next_step_ = next_step_.value_or(key.step)); });
    await([&] { return !in_flight_.contains(key.microbatch); });
    auto made = begin();
    made->key = key;
    const std::lock_guard lock(mutex_);
    in_flight_[key.microbatch] = std::move(made);
  }
  InFlight& own = in_flight(key.microbatch);
  const std::size_t number = own.exchanges[role]++;
  if (is_before && number == 0) own.arrived = take();
  auto made = exchange(own, role, number, meeting);
  if (made && !(is_forward && key.drops)) forget(own);
  return made;
}

Message ExchangedPasses::forward(std::uint64_t microbatch)
{
  InFlight& own = in_flight(microbatch);
  Message made = forward(own);
  if (!ends_by_exchange(ShardPass::Forward) && !own.key.drops) forget(own);
  return made;
}

Message ExchangedPasses::backward(std::uint64_t microbatch)
{
  InFlight& own = in_flight(microbatch);
  Message made = backward(own);
  if (!ends_by_exchange(ShardPass::InputGradient)) forget(own);
  return made;
}

void ExchangedPasses::await_gradients()
{
  await([&] { return in_flight_.empty(); });
}

void ExchangedPasses::updated(std::uint64_t step)
{
  const std::lock_guard lock(mutex_);
  if (++updated_[step] < updates_) return;
  updated_.erase(step);
  next_step_ = step + 1;
  changed_.notify_all();
}

void ExchangedPasses::cancel() noexcept
{
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  changed_.notify_all();
}

}  // namespace isobar::exec
