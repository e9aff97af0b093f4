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

/// The device's failure that LibTorch reports by `error`; nothing for other errors, which are bugs of ours.
std::optional<Failure> failure_of_device(const c10::Error& error)
{
  Failure failure;
  const std::string text = error.what_without_backtrace();
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    failure.kind = Failure::Kind::OutOfMemory;
    failure.text = fmt::format("out of memory{}: {}", place_of_failure(), shown(text, 300));
  } else if (gpu::has_failed()) {
    failure.text = shown(text.substr(0, text.find('\n')), 300);
  } else {
    return std::nullopt;
  }
  return failure;
}

/// Number of micro-batches whose inputs the first stage holds: one arrives while another is computed.
constexpr std::uint64_t inputs_at_first_stage = 2;

/// "rank 1 (b)", "rank 3 (data server)".
std::string name_of_rank(const Plan& plan, std::size_t rank)
{
  return rank < plan.stages.size() ? fmt::format("rank {} ({})", rank, shown(plan.stages[rank].device()))
                                   : fmt::format("rank {} (data server)", rank);
}

}  // namespace

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
  const Stream::Scope scope(lane(Lane::Compute).stream);
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
  Stream& stream = lane(Lane::Compute).stream;
  const Stream::Scope scope(stream);
  work_on_device([&] {
    work(*model_);
    stream.record().wait();
  });
}

void RankExecutor::run(std::uint64_t step, const Instruction& instruction)
{
  DeviceLane& device_lane = lane(instruction.lane);
  device_lane.is_timed = !evaluates_ && step < options_.timed_before;
  const Stream::Scope scope(device_lane.stream);
  std::optional<gpu::NamedRange> range;
  if (device_lane.stream.is_on_gpu()) range.emplace(name_of_event(instruction));
  work_on_device([&] { run_on_stream(step, instruction, device_lane); });
}

void RankExecutor::work_on_device(const std::function<void()>& work) const
{
  place_of_failure();  // clears an earlier one
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

void RankExecutor::run_on_stream(std::uint64_t step, const Instruction& instruction, DeviceLane& lane)
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

bool RankExecutor::has_next_step(Lane lane, std::uint64_t step)
{
  const StepControl control = is_data_server() ? await_first_stage() : controls_.await(step);
  if (rank_ == 0 && lane == Lane::ReceiveActivation) notify_data_server(control);
  if (control.end) (evaluates_ ? steps_evaluated_ : steps_done_) = step + 1;
  return !control.end;
}

namespace {

/// A transfer from the first stage to the data server: in each step one for each input that may leave, then one with
/// the step's control.
Instruction control_transfer(Opcode opcode, Lane lane, std::size_t peer)
{
  Instruction instruction;
  instruction.opcode = opcode;
  instruction.lane = lane;
  instruction.peer = peer;
  return instruction;
}

}  // namespace

void RankExecutor::notify_data_server(StepControl control)
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
  lane.stream.await(message);
  const Event begin = lane.stream.record();
  transport_->send(instruction, message);
  lane.ran(begin, lane.stream.record());
}

Message RankExecutor::receive(const Instruction& instruction, DeviceLane& lane)
{
  const Event begin = lane.stream.record();
  Message message = transport_->receive(instruction);
  lane.stream.await(message);
  for (auto& tensor : message.tensors) tensor = on_device(tensor, options_.device);
  message.ready = lane.stream.record();
  lane.ran(begin, message.ready);
  return message;
}

void RankExecutor::compute(std::uint64_t step, const Instruction& instruction, DeviceLane& lane)
{
  const Seconds begin_on_host = steady_time();
  const Seconds thread_time_before = thread_time();
  Message inputs = compute_inputs(step, instruction);
  lane.stream.await(inputs);
  const bool is_slow = (options_.slowdown > 1 || options_.speed) && instruction.opcode != Opcode::AllReduce;
  const Event begin = lane.stream.record();
  if (is_slow) lane.stream.begin_slow_work();
  // An AllReduce waits for other ranks, and a GPU works later.
  std::optional<Progress::Work> work;
  const bool works_here = !lane.stream.is_on_gpu() && instruction.opcode != Opcode::AllReduce;
  if (works_here) work.emplace(options_.progress, step, instruction);
  Message outputs = computed(step, instruction, std::move(inputs));
  // A slower device ends later: the thread sleeps for the rest of its time. Only processor time is stretched, not waits
  // for a processor, so that emulation also works with more ranks than processors.
  if (is_slow && lane.stream.is_on_gpu()) {
    lane.stream.end_slow_work(options_.slowdown);
  } else if (is_slow) {
    const Seconds takes =
        options_.speed ? instruction.work / *options_.speed : options_.slowdown * (thread_time() - thread_time_before);
    std::this_thread::sleep_for(std::chrono::duration<double>((begin_on_host + takes - steady_time()).value));
  }
  work.reset();
  outputs.ready = lane.stream.record();
  lane.ran(begin, outputs.ready);
  if (lane.stream.is_on_gpu() && options_.progress != nullptr) {
    options_.progress->queued([begin] { return begin.passed(); }, [end = outputs.ready] { return end.passed(); });
  }
  const bool frees_input = instruction.opcode == Opcode::Forward && rank_ == 0 && has_data_server_;
  if (frees_input && instruction.microbatch + inputs_at_first_stage < microbatches_) {
    outputs.ready.wait();
    notify_data_server({});
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
      reduced_ = {sums[0], sums[1]};
      return {};
    }
    case Opcode::Update:
      if (stages_ == 1 && needs_gradient_sync(workload_)) reduced_ = model_->gradient_facts();
      model_->update(reduced_);
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
  constexpr std::size_t most_in_flight = 2;
  Stream& stream = lane(Lane::Compute).stream;
  StepEnd last{step, {}, {}};
  {
    const Stream::Scope scope(stream);
    if (is_last() && !evaluates_) last.loss.push_back(begin_copy(model_->take_loss()));
    last.end = stream.record();
  }
  steps_in_flight_.push_back(std::move(last));
  while (!steps_in_flight_.empty() &&
         (steps_in_flight_.size() > most_in_flight || steps_in_flight_.front().end.passed())) {
    report_step(steps_in_flight_.front(), ended);
    steps_in_flight_.pop_front();
  }
}

void RankExecutor::begin_evaluation(const BatchSource& batches, std::uint64_t steps)
{
  evaluates_ = true;
  controls_.clear();
  options_.batches = &batches;
  options_.control = [steps, stop_requested = options_.stop_requested](std::uint64_t step, bool) {
    return StepControl{.checkpoint = false, .end = step + 1 == steps || stop_requested()};
  };
}

void RankExecutor::catch_up(const StepEnded& ended)
{
  for (const auto& step : steps_in_flight_) report_step(step, ended);
  steps_in_flight_.clear();
}

void RankExecutor::finish(const StepEnded& ended, RankReport& report)
{
  catch_up(ended);
  for (const Lane each : all_lanes) lane(each).write_times(report.lanes[static_cast<std::size_t>(each)]);
  report.peak_memory = meter_.peak();
}

void RankExecutor::report_step(const StepEnd& step, const StepEnded& ended)
{
  const Seconds end = step.end.time();  // waits; the loss is complete after it
  ended(step.step, end, step.loss.empty() ? std::nullopt : std::optional(step.loss.front().item<double>()));
}

void RankExecutor::DeviceLane::ran(const Event& begin, const Event& end)
{
  if (!stream.is_on_gpu() || !is_timed) return;
  pending_.emplace_back(begin, end);
  while (!pending_.empty() && pending_.front().second.passed()) resolve_first();
}

void RankExecutor::DeviceLane::resolve_first()
{
  ended_.emplace_back(pending_.front().first.time(), pending_.front().second.time());
  pending_.pop_front();
}

void RankExecutor::DeviceLane::write_times(std::vector<InstructionTime>& times)
{
  while (!pending_.empty()) resolve_first();
  for (std::size_t i = 0; i < ended_.size(); ++i) std::tie(times[i].begin, times[i].end) = ended_[i];
}

}  // namespace isobar::exec
