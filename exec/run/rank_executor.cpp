#include "exec/run/rank_executor.hpp"

#include "core/base/clock.hpp"
#include "core/failure.hpp"
#include "core/program/chrome_trace.hpp"
#include "exec/launch/rank_failures.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/device.hpp"
#include "exec/model/gpu.hpp"

#include <fmt/format.h>

#include <torch/torch.h>

#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

namespace isobar::exec {

namespace {

/// A failure of the device's own, and no bug of ours, of LibTorch's error; nothing of another error.
std::optional<Failure> failure_of_device(const c10::Error& error)
{
  Failure failure;
  const std::string said = error.what_without_backtrace();
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    failure.kind = Failure::Kind::OutOfMemory;
    failure.text = fmt::format("out of memory{}: {}", place_of_failure(), shown(said, 300));
  } else if (gpu::has_failed()) {
    failure.text = shown(said.substr(0, said.find('\n')), 300);
  } else {
    return std::nullopt;
  }
  return failure;
}

/// The first stage holds the inputs of this many micro-batches: one arrives while another is worked on.
constexpr std::uint64_t inputs_at_first_stage = 2;

/// "rank 1 (device b)".
std::string name_of_rank(const Plan& plan, std::size_t rank)
{
  return rank < plan.stages.size() ? fmt::format("rank {} ({})", rank, shown(plan.stages[rank].device()))
                                   : fmt::format("rank {} (data server)", rank);
}

}  // namespace

void RankExecutor::Mailbox::put(std::uint64_t microbatch, Message message)
{
  const std::lock_guard lock(mutex_);
  messages_.emplace(microbatch, std::move(message));
}

Message RankExecutor::Mailbox::take(std::uint64_t microbatch)
{
  const std::lock_guard lock(mutex_);
  const auto first = messages_.lower_bound(microbatch);
  ensure(first != messages_.end() && first->first == microbatch, "an instruction finds what it waited for");
  Message message = std::move(first->second);
  messages_.erase(first);
  return message;
}

void RankExecutor::StepControlBoard::post(std::uint64_t step, StepControl control)
{
  constexpr std::size_t most = 4;  // all lanes of a rank are in the same step or the next
  const std::lock_guard lock(mutex_);
  controls_[step] = control;
  if (controls_.size() > most) controls_.erase(controls_.begin());
  changed_.notify_all();
}

bool RankExecutor::StepControlBoard::knows(std::uint64_t step)
{
  const std::lock_guard lock(mutex_);
  return controls_.contains(step);
}

StepControl RankExecutor::StepControlBoard::await(std::uint64_t step)
{
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return cancelled_ || controls_.contains(step); });
  if (!controls_.contains(step)) {
    throw_failure(environment_failure(Failure::Kind::Cancelled, "another lane has failed"));
  }
  return controls_.at(step);
}

void RankExecutor::StepControlBoard::forget()
{
  const std::lock_guard lock(mutex_);
  controls_.clear();
}

void RankExecutor::StepControlBoard::cancel() noexcept
{
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

RankExecutor::RankExecutor(const Workload& workload, const Plan& plan, std::size_t rank, const RankOptions& options)
    : workload_(workload),
      options_(options),
      stages_(plan.stages.size()),
      rank_(rank),
      has_data_server_(plan.data_server.has_value()),
      microbatches_(plan.goal.microbatches),
      name_(name_of_rank(plan, rank)),
      meter_(options.memory_cap)
{
  meter_cpu_memory();
  if (is_data_server()) options_.device = "cpu";
  open_device(options_.device);
  for (const Lane each : all_lanes) {
    const auto kind = each == Lane::Compute ? Stream::Kind::Computations : Stream::Kind::Transfers;
    lanes_[static_cast<std::size_t>(each)] = std::make_unique<DeviceLane>(options_.device, kind, meter_);
  }
  if (is_data_server()) return;
  const Stream::Scope scope(lane(Lane::Compute).queue);
  const Stage& stage = plan.stages[rank_];
  StageOptions stage_options;
  stage_options.first_layer = stage.first_layer;
  stage_options.last_layer = stage.last_layer;
  stage_options.recomputed = plan.recompute;
  stage_options.microbatches = plan.goal.microbatches;
  stage_options.seed = options_.seed;
  stage_options.device = options_.device;
  stage_options.batches = options_.batches;
  work_on_device([&] { model_ = std::make_unique<StageModel>(workload, stage_options); });
}

void RankExecutor::with_model(const std::function<void(StageModel&)>& work)
{
  Stream& queue = lane(Lane::Compute).queue;
  const Stream::Scope scope(queue);
  work_on_device([&] {
    work(*model_);
    queue.record().wait();
  });
}

void RankExecutor::run(std::uint64_t step, const Instruction& instruction)
{
  DeviceLane& of_instruction = lane(instruction.lane);
  of_instruction.is_timed = !evaluates_ && step < options_.timed_before;
  const Stream::Scope scope(of_instruction.queue);
  std::optional<gpu::NamedRange> range;
  if (of_instruction.queue.is_on_gpu()) range.emplace(name_of_event(instruction));
  work_on_device([&] { run_in_queue(step, instruction, of_instruction); });
}

void RankExecutor::work_on_device(const std::function<void()>& work) const
{
  place_of_failure();  // of another one
  const auto rethrow_as_mine = [this](const Failure& failure) {
    throw_failure(failure_of_rank(rank_, name_, failure));
  };
  try {
    work();
    meter_.refuse_excess();
  } catch (const c10::Error& error) {
    if (const auto failure = failure_of_device(error)) rethrow_as_mine(*failure);
    throw;
  } catch (const std::bad_alloc& error) {
    Failure failure = failure_of(error);
    failure.text += place_of_failure();
    rethrow_as_mine(failure);
  } catch (const EnvironmentError& error) {
    const Failure failure = failure_of(error);
    if (failure.kind == Failure::Kind::OutOfMemory) rethrow_as_mine(failure);
    throw;
  }
}

void RankExecutor::run_in_queue(std::uint64_t step, const Instruction& instruction, DeviceLane& lane)
{
  const std::uint64_t microbatch = instruction.microbatch;
  switch (instruction.lane) {
    case Lane::Compute:
      compute(step, instruction, lane);
      return;
    case Lane::SendActivation:
      if (is_data_server()) {
        if (microbatch >= inputs_at_first_stage) await_first_stage();
        send(instruction, micro_batch_data(step, microbatch), {}, lane);
      } else {
        send(instruction, activations_to_send_.take(microbatch), controls_.await(step), lane);
      }
      return;
    case Lane::SendGradient:
      if (options_.stop_requested()) stop_requested_ = true;
      send(instruction, gradients_to_send_.take(microbatch), {.checkpoint = false, .end = stop_requested_}, lane);
      return;
    case Lane::ReceiveActivation: {
      Message message = receive(instruction, lane);
      if (rank_ > 0) controls_.post(step, message.control);
      received_activations_.put(microbatch, std::move(message));
      return;
    }
    case Lane::ReceiveGradient: {
      Message message = receive(instruction, lane);
      if (message.control.end) stop_requested_ = true;
      received_gradients_.put(microbatch, std::move(message));
      return;
    }
  }
}

bool RankExecutor::goes_on(Lane lane, std::uint64_t step)
{
  const StepControl control = is_data_server() ? await_first_stage() : controls_.await(step);
  if (rank_ == 0 && lane == Lane::ReceiveActivation) tell_data_server(control);
  if (control.end) (evaluates_ ? steps_evaluated_ : steps_done_) = step + 1;
  return !control.end;
}

namespace {

/// The way from the first stage to the data server: in each step a message for each input that may leave now, and the
/// step's control last.
Instruction control_transfer(Opcode opcode, Lane lane, std::size_t peer)
{
  Instruction instruction;
  instruction.opcode = opcode;
  instruction.lane = lane;
  instruction.peer = peer;
  return instruction;
}

}  // namespace

void RankExecutor::tell_data_server(StepControl control)
{
  Message message;
  message.control = control;
  const std::lock_guard lock(to_data_server_mutex_);
  transport_->send(control_transfer(Opcode::Send, Lane::SendGradient, stages_), message);
}

StepControl RankExecutor::await_first_stage()
{
  return transport_->receive(control_transfer(Opcode::Recv, Lane::ReceiveGradient, 0)).control;
}

void RankExecutor::cancel() noexcept
{
  controls_.cancel();
  transport_->cancel();
}

void RankExecutor::send(const Instruction& instruction, Message message, StepControl control, DeviceLane& lane)
{
  message.control = control;
  lane.queue.await(message);
  const Event begin = lane.queue.record();
  transport_->send(instruction, message);
  lane.ran(begin, lane.queue.record());
}

Message RankExecutor::receive(const Instruction& instruction, DeviceLane& lane)
{
  const Event begin = lane.queue.record();
  Message message = transport_->receive(instruction);
  lane.queue.await(message);
  for (auto& tensor : message.tensors) tensor = on_device(tensor, options_.device);
  message.ready = lane.queue.record();
  lane.ran(begin, message.ready);
  return message;
}

void RankExecutor::compute(std::uint64_t step, const Instruction& instruction, DeviceLane& lane)
{
  const Seconds begin_on_host = steady_time();
  const Seconds worked_before = thread_time();
  Message inputs = compute_inputs(step, instruction);
  lane.queue.await(inputs);
  const bool is_slow = (options_.slowdown > 1 || options_.speed) && instruction.opcode != Opcode::AllReduce;
  const Event begin = lane.queue.record();
  if (is_slow) lane.queue.begin_slow_work();
  // An AllReduce waits for the others, and a GPU's work is done later.
  std::optional<Progress::Work> work;
  const bool works_here = !lane.queue.is_on_gpu() && instruction.opcode != Opcode::AllReduce;
  if (works_here) work.emplace(options_.progress, step, instruction);
  Message outputs = computed(step, instruction, std::move(inputs));
  // A slower device is one that is done later: the rest of its time is slept away. What the thread has worked counts,
  // not what it has waited for the processor, so that more ranks than processors stretch alike.
  if (is_slow && lane.queue.is_on_gpu()) {
    lane.queue.end_slow_work(options_.slowdown);
  } else if (is_slow) {
    const Seconds takes =
        options_.speed ? instruction.work / *options_.speed : options_.slowdown * (thread_time() - worked_before);
    std::this_thread::sleep_for(std::chrono::duration<double>((begin_on_host + takes - steady_time()).value));
  }
  work.reset();
  outputs.ready = lane.queue.record();
  lane.ran(begin, outputs.ready);
  if (lane.queue.is_on_gpu() && options_.progress != nullptr) {
    options_.progress->queued([begin] { return begin.passed(); }, [end = outputs.ready] { return end.passed(); });
  }
  const bool frees_input = instruction.opcode == Opcode::Forward && rank_ == 0 && has_data_server_;
  if (frees_input && instruction.microbatch + inputs_at_first_stage < microbatches_) {
    outputs.ready.wait();
    tell_data_server({});
  }
  if (instruction.opcode == Opcode::Forward && !is_last()) {
    activations_to_send_.put(instruction.microbatch, std::move(outputs));
  } else if (instruction.opcode == Opcode::Backward && rank_ > 0) {
    gradients_to_send_.put(instruction.microbatch, std::move(outputs));
  }
}

Message RankExecutor::compute_inputs(std::uint64_t step, const Instruction& instruction)
{
  if (instruction.opcode == Opcode::Forward) {
    if (rank_ == 0 && !controls_.knows(step)) {
      controls_.post(step, options_.control(step, stop_requested_ || options_.stop_requested()));
    }
    if (rank_ == 0 && !has_data_server_) return micro_batch_data(step, instruction.microbatch);
    return received_activations_.take(instruction.microbatch);
  }
  if (instruction.opcode == Opcode::Backward && !is_last()) return received_gradients_.take(instruction.microbatch);
  return {};
}

Message RankExecutor::computed(std::uint64_t step, const Instruction& instruction, Message inputs)
{
  switch (instruction.opcode) {
    case Opcode::Forward:
      if (evaluates_) return model_->evaluate(*options_.batches, step, instruction.microbatch, inputs);
      return model_->forward(step, instruction.microbatch, std::move(inputs));
    case Opcode::Backward:
      return model_->backward(instruction.microbatch, inputs);
    case Opcode::AllReduce: {
      const GradientFacts own = model_->gradient_facts();
      std::array<double, 2> sums = {own.sum_of_squares, own.not_finite};
      transport_->all_reduce_sum(sums);
      agreed_ = {sums[0], sums[1]};
      return {};
    }
    case Opcode::Update:
      if (stages_ == 1 && needs_gradient_sync(workload_)) agreed_ = model_->gradient_facts();
      model_->update(agreed_);
      return {};
    case Opcode::Send:
    case Opcode::Recv:
      break;
  }
  throw std::logic_error("a transfer on the compute lane");
}

Message RankExecutor::micro_batch_data(std::uint64_t step, std::uint64_t microbatch) const
{
  const Progress::Work work(options_.progress, step, "data");
  Message message;
  message.tensors = options_.batches->inputs({options_.seed, step, microbatch, !evaluates_}, options_.device);
  message.differentiable.assign(message.tensors.size(), false);
  return message;
}

void RankExecutor::end_step(std::uint64_t step, const StepEnded& ended)
{
  constexpr std::size_t most_under_way = 2;
  Stream& queue = lane(Lane::Compute).queue;
  StepEnd last{step, {}, {}};
  {
    const Stream::Scope scope(queue);
    if (is_last() && !evaluates_) last.loss.push_back(copy_begun(model_->take_loss()));
    last.end = queue.record();
  }
  steps_under_way_.push_back(std::move(last));
  while (!steps_under_way_.empty() &&
         (steps_under_way_.size() > most_under_way || steps_under_way_.front().end.passed())) {
    tell(steps_under_way_.front(), ended);
    steps_under_way_.pop_front();
  }
}

void RankExecutor::begin_evaluation(const BatchSource& batches, std::uint64_t steps)
{
  evaluates_ = true;
  controls_.forget();
  options_.batches = &batches;
  options_.control = [steps, stop_requested = options_.stop_requested](std::uint64_t step, bool) {
    return StepControl{.checkpoint = false, .end = step + 1 == steps || stop_requested()};
  };
}

void RankExecutor::catch_up(const StepEnded& ended)
{
  for (const auto& step : steps_under_way_) tell(step, ended);
  steps_under_way_.clear();
}

void RankExecutor::finish(const StepEnded& ended, RankReport& report)
{
  catch_up(ended);
  for (const Lane each : all_lanes) lane(each).write_times(report.lanes[static_cast<std::size_t>(each)]);
  report.peak_memory = meter_.peak();
}

void RankExecutor::tell(const StepEnd& step, const StepEnded& ended) const
{
  const Seconds end = step.end.time();  // from here on the loss is there
  ended(step.step, end, step.loss.empty() ? std::nullopt : std::optional(step.loss.front().item<double>()));
}

void RankExecutor::DeviceLane::ran(const Event& begin, const Event& end)
{
  if (!queue.is_on_gpu() || !is_timed) return;
  queued_.emplace_back(begin, end);
  while (!queued_.empty() && queued_.front().second.passed()) resolve_first();
}

void RankExecutor::DeviceLane::resolve_first()
{
  ended_.emplace_back(queued_.front().first.time(), queued_.front().second.time());
  queued_.pop_front();
}

void RankExecutor::DeviceLane::write_times(std::vector<InstructionTime>& times)
{
  while (!queued_.empty()) resolve_first();
  for (std::size_t i = 0; i < ended_.size(); ++i) std::tie(times[i].begin, times[i].end) = ended_[i];
}

}  // namespace isobar::exec
