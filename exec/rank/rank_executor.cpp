#include "exec/rank/rank_executor.hpp"

#include "core/base/clock.hpp"
#include "core/failure.hpp"
#include "core/plan/tied_copies.hpp"
#include "core/program/chrome_trace.hpp"
#include "core/spmd/reform_time.hpp"
#include "exec/device/device.hpp"
#include "exec/device/gpu.hpp"
#include "exec/device/tensor_slices.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/model/batch.hpp"
#include "exec/stage/exchanged_passes.hpp"
#include "exec/transport/tcp_transport.hpp"
#include "exec/watch/rank_failures.hpp"
#include "schedules/lowering/replicas.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <set>
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

bool makes_gradients(const Instruction& instruction)
{
  return instruction.opcode == Opcode::Backward || instruction.opcode == Opcode::BackwardInput;
}

/// Whether work of the engine is done when its call returns, whatever the device.
bool is_of_machine(Engine engine)
{
  return engine == Engine::Host || engine == Engine::DiskRead || engine == Engine::DiskWrite;
}

/// The stages of a rank whose backward passes are split: all those of a stage are, or none.
std::set<std::uint32_t> stages_that_split(const Program& program, std::size_t rank, std::size_t stages)
{
  std::set<std::uint32_t> seen;
  std::set<std::uint32_t> split;
  const std::uint64_t length = program.length(rank, compute_lane);
  for (std::uint64_t position = 0; position < length && seen.size() < stages; ++position) {
    const Instruction instruction = program.at(rank, compute_lane, position);
    if (!makes_gradients(instruction)) continue;
    seen.insert(instruction.stage);
    if (instruction.opcode == Opcode::BackwardInput) split.insert(instruction.stage);
  }
  return split;
}

/// The layer of a stage with a matrix of which other stages have copies; none if there is none.
std::optional<std::size_t> tied_layer_of(std::size_t stage, const std::vector<TiedMatrix>& matrices)
{
  for (const auto& matrix : matrices) {
    const auto found = std::find(matrix.stages.begin(), matrix.stages.end(), stage);
    if (found != matrix.stages.end()) return matrix.layers[static_cast<std::size_t>(found - matrix.stages.begin())];
  }
  return std::nullopt;
}

/// `reader`: the rank that a message leaves for.
Mailbox::Address address_of(Payload payload, std::uint32_t stage, const Instruction& instruction,
                            std::size_t reader = 0)
{
  return {payload, stage, instruction.microbatch, reader};
}

}  // namespace

RankExecutor::RankExecutor(const Workload& workload, const Plan& plan, const Program& program, std::size_t rank,
                           const RankOptions& options)
    : workload_(workload),
      program_(&program),
      training_(&program),
      options_(options),
      rank_(rank),
      stages_(plan, rank),
      parameters_(stages_, options.device, plan.experts.divides()),
      has_data_server_(plan.data_server.has_value()),
      is_alone_(devices_of(plan).size() == 1),
      divides_sequence_(plan.stages.front().grid.form == ShardGrid::Form::Sequence),
      name_(names_of_ranks(plan).at(rank)),
      meters_{MemoryMeter(options.memory_cap), MemoryMeter(Bytes(0)), MemoryMeter(Bytes(0))},
      channels_(program.channels().size())
{
  std::iota(channels_.begin(), channels_.end(), std::size_t{0});
  meter_cpu_memory();
  if (options_.batches != nullptr) use_batches(*options_.batches);
  if (is_data_server()) options_.device = "cpu";
  open_device(options_.device);
  add_lanes();
  if (divides_operators(plan)) divided_ = operator_plan_of(plan, workload);
  make_models(plan);
  if (divided_) make_operators(plan);
  if (options_.turns != nullptr)
    turn_ = std::make_unique<RankTurn>(*options_.turns, program, rank, options_.first_step);
}

/// What a shard holds of the parameters among the operators of a part.
std::vector<HeldParameter> RankExecutor::held_parameters(const Stage& stage, std::size_t shard) const
{
  const std::size_t group = divided_->place_of(rank_).group;
  const TensorBlocks blocks(divided_->graph, divided_->groups[group].shares);
  std::vector<HeldParameter> held;
  for (std::size_t i = stage.first_layer; i <= stage.last_layer; ++i) {
    HeldParameter& own = held.emplace_back();
    const auto& node = divided_->graph.operators[i];
    if (node.kind != spmd::OperatorKind::Parameter) continue;
    const spmd::Form form = divided_->division.signatures[i].outputs.at(0);
    own = {blocks.of(node.outputs[0], form, shard), form == spmd::replicate};
  }
  return held;
}

void RankExecutor::make_operators(const Plan& plan)
{
  Tensors parameters;
  for (const auto& [index, own] : stages_.own) {
    const Tensors& of_part = own.model->parameters();
    parameters.insert(parameters.end(), of_part.begin(), of_part.end());
  }
  auto data = [this](std::uint64_t step, std::uint64_t microbatch, std::size_t number) {
    const Progress::Work work(options_.progress, step, "data");
    const RandomKey key{options_.seed, step, microbatch};
    return number == 0 ? options_.batches->inputs(key, options_.device).at(0)
                       : options_.batches->labels(key, options_.device);
  };
  operators_ = std::make_unique<OperatorPasses>(*divided_, workload_, std::move(parameters),
                                                OperatorOptions{.rank = rank_,
                                                                .data = std::move(data),
                                                                .microbatches = plan.goal.microbatches,
                                                                .seed = options_.seed,
                                                                .device = options_.device});
}

void RankExecutor::make_models(const Plan& plan)
{
  const auto ties = tied_matrices(workload_, plan);
  const auto split = stages_that_split(*program_, rank_, stages_.own.size());
  const Stream::Scope scope(lanes_.front()->stream);
  bool uses_machine = false;
  for (auto& [index, own] : stages_.own) {
    const Stage& stage = plan.stages[index];
    const Layer& first_layer = workload_.layers[stage.first_layer];
    StageOptions stage_options;
    stage_options.first_layer = stage.first_layer;
    stage_options.last_layer = stage.last_layer;
    stage_options.recomputed = plan.recompute;
    stage_options.microbatches = plan.goal.microbatches;
    stage_options.replica = own.placed.replica;
    stage_options.sync = plan.sync;
    stage_options.has_shards = has_shards({stage});
    stage_options.is_divided_alike = are_divided_alike(stage);
    if (!stage_options.is_divided_alike) own.sync_groups = sync_groups(first_layer, stage);
    stage_options.divides_sequence = divides_sequence_;
    stage_options.sites = sites_of(stage, stage_options.is_divided_alike ? own.placed.shard : 0);
    stage_options.shard = own.placed.shard;
    if (divided_) {
      stage_options.operators = held_parameters(stage, own.placed.shard);
    } else {
      stage_options.units = units_of_shard(first_layer, stage.replicas[own.placed.replica], own.placed.shard);
    }
    stage_options.splits_backward = split.contains(index);
    stage_options.seed = options_.seed;
    stage_options.device = options_.device;
    stage_options.batches = options_.batches;
    stage_options.residence = own.residence;
    stage_options.machine_memory = &meter(Tier::Host);
    for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
      const auto& tied_to = workload_.layers[layer].tied_to;
      const bool has_copy = workload_.layers[layer].has_tied_copy;
      if (tied_to && *tied_to < stage.first_layer && !has_copy)
        stage_options.has_matrix = stages_.model_of_layer(*tied_to);
    }
    stage_options.tied_layer = tied_layer_of(index, ties);
    work_on_device([&, &model = own.model] { model = std::make_unique<StageModel>(workload_, stage_options); });
    uses_machine = uses_machine || !own.residence.is_on_device();
  }
  if (!uses_machine) return;
  work_on_device([&] {
    machine_ = std::make_unique<RankMachine>(
        *program_, rank_, stages_, TierMeters{meter(Tier::Device), meter(Tier::Host), meter(Tier::Disk)},
        RankMachine::Options{options_.device, options_.scratch, needs_gradient_sync(workload_),
                             is_gpu(options_.device) ? std::nullopt : options_.machine, options_.disturbed});
  });
}

/// Adds the lanes that `program_` has and no program before it had.
void RankExecutor::add_lanes()
{
  const auto& lanes = program_->lanes(rank_);
  for (std::size_t lane = lanes_.size(); lane < lanes.size(); ++lane) {
    const Engine engine = lanes[lane].engine;
    const auto kind = engine == Engine::Device ? Stream::Kind::Computations : Stream::Kind::Transfers;
    const bool is_on_machine = is_of_machine(engine);
    lanes_.push_back(std::make_unique<DeviceLane>(is_on_machine ? "cpu" : options_.device, kind,
                                                  is_on_machine ? working_memory_ : meter(Tier::Device)));
  }
}

void RankExecutor::connect(Transport& transport, StepBoard& board, TransferWaits waits)
{
  transport_ = &transport;
  board_ = &board;
  waits_ = std::move(waits);
}

bool RankExecutor::has_last_stage() const
{
  return stages_.own.contains(last_stage());
}

bool RankExecutor::has_first_shard(std::size_t stage) const
{
  const auto found = stages_.own.find(static_cast<std::uint32_t>(stage));
  return found != stages_.own.end() && found->second.placed.replica == 0 && found->second.placed.shard == 0;
}

void RankExecutor::with_models(const std::function<void(std::size_t stage, StageModel& model)>& work)
{
  Stream& stream = lanes_.front()->stream;
  const Stream::Scope scope(stream);
  work_on_device([&] {
    for (auto& [stage, own] : stages_.own) {
      const auto with_model = [&, index = stage, &model = *own.model] { work(index, model); };
      machine_ ? machine_->with_state(stage, with_model) : with_model();
    }
    stream.record().wait();
  });
}

void RankExecutor::join_turns()
{
  if (turn_) turn_->join(options_.stop_requested);
}

void RankExecutor::leave_turns() noexcept
{
  if (turn_) turn_->leave();
}

void RankExecutor::await_turn(std::uint64_t step, std::uint64_t position, const Instruction& instruction)
{
  if (!turn_) return;
  const auto check = [this] { board_->check_turns(); };
  const auto numbered = [&](std::uint64_t turn, std::uint64_t number) {
    board_->add_turn(turn, rank_, number);
    check();
  };
  turn_->await(step, position, instruction, *waits_, numbered, check);
}

void RankExecutor::run(std::uint64_t step, std::uint64_t position, const Instruction& instruction)
{
  if (options_.stop_requested()) board_->request_stop();
  if (rank_ == 0 && instruction.lane == compute_lane && position == 0) {
    board_->decide(phase(), step, options_.control(step, board_->stop_is_requested()));
  }
  const Job job{instruction, step, position, *lanes_.at(instruction.lane)};
  const Stream::Scope scope(job.lane.stream);
  std::optional<gpu::NamedRange> range;
  if (is_gpu(options_.device)) {
    range.emplace(name_of_event(instruction));
    await_events(job);
  }
  if (turn_) turn_->follow(instruction, job.lane.stream);
  work_on_device([&] { run_on_stream(job); });
  if (turn_) turn_->done(step, position, instruction, job.lane.stream);
}

/// Orders the job after the work of the instructions that it waits for, whose calls have returned. The machine's own
/// work waits here.
void RankExecutor::await_events(const Job& job) const
{
  for (const Wait& wait : job.instruction.waits) {
    if (wait.periods_back > job.step) continue;
    const Event end = lanes_.at(wait.lane)->end_of(job.step - wait.periods_back, wait.count - 1);
    job.lane.stream.is_on_gpu() ? job.lane.stream.await(end) : end.wait();
  }
}

void RankExecutor::work_on_device(const std::function<void()>& work) const
{
  place_of_failure();  // clears an earlier one
  const auto rethrow_as_mine = [this](const Failure& failure) {
    throw_failure(failure_of_rank(rank_, name_, failure));
  };
  try {
    work();
    meter(Tier::Device).refuse_excess();
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

void RankExecutor::run_on_stream(const Job& job)
{
  switch (job.instruction.opcode) {
    case Opcode::Update:
      job.instruction.lane == compute_lane ? compute(job) : use_machine(job);
      return;
    case Opcode::Forward:
    case Opcode::Backward:
    case Opcode::BackwardInput:
    case Opcode::BackwardWeight:
      compute(job);
      return;
    case Opcode::Load:
    case Opcode::Store:
    case Opcode::Read:
    case Opcode::Write:
      use_machine(job);
      return;
    case Opcode::Send:
      send(job);
      return;
    case Opcode::Recv:
      receive(job);
      return;
    case Opcode::AllReduce:
    case Opcode::ReduceScatter:
    case Opcode::AllGather:
    case Opcode::AllToAll: {
      const Payload payload = job.instruction.payload;
      if (operators_ && payload != Payload::GradientFacts) return reform(job);
      if (payload != Payload::Activation && payload != Payload::Gradient) return collective(job);
      if (is_exchange(role_of(job.instruction).value())) return exchange(job);
      is_before_pass(role_of(job.instruction).value()) ? gather_sequence(job) : make_whole(job);
      return;
    }
    case Opcode::Broadcast:
      break;
  }
  throw std::logic_error("a collective that no program has");
}

/// Before a checkpoint, which has what all tiers hold.
bool RankExecutor::rests_after(std::uint64_t step)
{
  return machine_ && !evaluates_ && control_of(step).checkpoint;
}

bool RankExecutor::has_next_step(LaneId /*lane*/, std::uint64_t step)
{
  const StepControl control = control_of(step);
  if (control.end) (evaluates_ ? steps_evaluated_ : steps_done_) = step + 1;
  return !control.end;
}

StepControl RankExecutor::control_of(std::uint64_t step)
{
  StepControl control;
  waits_->decision(step, [&](const Deadline& deadline) { control = board_->await(phase(), step, deadline); });
  return control;
}

void RankExecutor::cancel() noexcept
{
  board_->cancel();
  transport_->cancel();
  for (auto& [stage, own] : stages_.own) {
    if (ExchangedPasses* const passes = own.model->exchanged_passes()) passes->cancel();
  }
}

const Channel& RankExecutor::channel_at(const Instruction& instruction) const
{
  return program_->channels()[program_->lanes(rank_)[instruction.lane].channel.value()];
}

/// Of the training, whose channels the transport has.
std::size_t RankExecutor::channel_of(const Instruction& instruction) const
{
  return channels_.at(program_->lanes(rank_).at(instruction.lane).channel.value());
}

void RankExecutor::ran(const Job& job, const Event& begin, const Event& end) const
{
  job.lane.ran(job.step, job.position, !evaluates_ && job.step < options_.timed_before, begin, end);
}

void RankExecutor::send(const Job& job)
{
  const Instruction& instruction = job.instruction;
  const std::size_t reader = other_end(channel_at(instruction), rank_, instruction.lane).rank;
  Stream& stream = job.lane.stream;
  const Message message = [&] {
    if (is_data_server()) return micro_batch_data(job.step, instruction.microbatch);
    if (operators_) return operators_->leaving(reader, job.step, instruction, stream);
    return leaving_.take(address_of(instruction.payload, instruction.stage, instruction, reader));
  }();
  stream.await(message);
  const Event begin = stream.record();
  transport_->send(channel_of(instruction), instruction, message);
  ran(job, begin, stream.record());
}

void RankExecutor::receive(const Job& job)
{
  const Instruction& instruction = job.instruction;
  Stream& stream = job.lane.stream;
  const Event begin = stream.record();
  Message message = transport_->receive(channel_of(instruction), instruction);
  stream.await(message);
  for (auto& tensor : message.tensors) tensor = on_device(tensor, options_.device);
  message.ready = stream.record();
  if (operators_) {
    const std::size_t sender = other_end(channel_at(instruction), rank_, instruction.lane).rank;
    operators_->arrived(sender, job.step, instruction, message, stream);
    return ran(job, begin, stream.record());
  }
  ran(job, begin, message.ready);
  arrived_.put(address_of(instruction.payload, instruction.stage, instruction), std::move(message));
}

void RankExecutor::collective(const Job& job)
{
  Stream& stream = job.lane.stream;
  const Event begin = stream.record();
  const auto on_channel = [&](const Instruction& instruction, const Tensors& tensors) {
    stream.record().wait();
    if (!tensors.empty()) transport_->collective(channel_of(instruction), instruction, tensors);
  };
  parameters_.run(job.step, job.instruction, channel_at(job.instruction), on_channel);
  ran(job, begin, stream.record());
}

void RankExecutor::reform(const Job& job)
{
  Stream& stream = job.lane.stream;
  const Event begin = stream.record();
  const std::size_t channel = channel_of(job.instruction);
  const Collectives collectives = {
      [&](const Instruction& instruction, const Tensors& tensors) {
        transport_->collective(channel, instruction, tensors);
      },
      [&](const Instruction& instruction, const Tensors& outgoing, const Tensors& incoming) {
        transport_->exchange(channel, instruction, outgoing, incoming);
      }};
  if (program_->lanes(rank_)[job.instruction.lane].name == spmd::replica_lane) {
    operators_->add_up_replicas(job.instruction, collectives, stream);
  } else {
    operators_->reform(job.step, job.instruction, collectives, stream);
  }
  ran(job, begin, stream.record());
}

std::optional<ShardRole> RankExecutor::role_of(const Instruction& instruction) const
{
  return program_->lanes(rank_).at(instruction.lane).role;
}

/// Gathers the parts of a sequence that a pass reads: of its inputs, before the forward and again before the backward
/// pass, until which each shard keeps its own part, or of the gradients of its outputs.
void RankExecutor::gather_sequence(const Job& job)
{
  const Instruction& instruction = job.instruction;
  const auto address = address_of(instruction.payload, instruction.stage, instruction);
  const bool is_again = role_of(instruction) == ShardRole::KeptInputGather;
  Message message = is_again ? kept_.take(address) : arrived_.take(address);
  Stream& stream = job.lane.stream;
  stream.await(message);
  const Event begin = stream.record();
  if (role_of(instruction) == ShardRole::InputGather && !evaluates_) kept_.put(address, message);
  for (auto& tensor : message.tensors) {
    std::vector<std::int64_t> shape = {static_cast<std::int64_t>(stages_.shards(instruction.stage).size())};
    shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
    const at::Tensor parts = at::empty(shape, tensor.options());
    parts[own_shard(instruction)].copy_(tensor);
    tensor = parts;
  }
  stream.record().wait();
  transport_->collective(channel_of(instruction), instruction, message.tensors);
  for (auto& tensor : message.tensors) tensor = joined_sequence(tensor);
  message.ready = stream.record();
  ran(job, begin, message.ready);
  (is_again ? restored_ : gathered_).put(address, std::move(message));
}

/// Exchanges what a layer needs whose sequences or experts are divided, or gradients.
void RankExecutor::exchange(const Job& job)
{
  const Instruction& instruction = job.instruction;
  Stream& stream = job.lane.stream;
  const Event begin = stream.record();
  ExchangedPasses::Meeting meeting;
  for (const End& end : channel_at(instruction).ends) {
    if (end.rank == rank_) meeting.own = meeting.devices;
    ++meeting.devices;
  }
  meeting.exchange = [&](const Tensors& outgoing, const Tensors& incoming) {
    transport_->exchange(channel_of(instruction), instruction, outgoing, incoming);
  };
  const auto take = [&] { return arrived_.take(address_of(instruction.payload, instruction.stage, instruction)); };
  const RandomKey key = {options_.seed, job.step, instruction.microbatch, !evaluates_};
  std::optional<Message> made =
      stages_.model(instruction.stage).exchanged_passes()->exchange(role_of(instruction).value(), key, meeting, take);
  const Event end = stream.record();
  ran(job, begin, end);
  if (!made) return;
  made->ready = end;
  leave(instruction.payload, instruction, std::move(*made));
}

/// Makes whole what the shards of a replica have made of a task: adds up their addends, or gathers their parts. Where
/// they divide the sequence, each gets its part of the sums.
void RankExecutor::make_whole(const Job& job)
{
  const Instruction& instruction = job.instruction;
  Message message = made_.take(address_of(instruction.payload, instruction.stage, instruction));
  Stream& stream = job.lane.stream;
  stream.await(message);
  const Event begin = stream.record();
  const std::size_t shards = stages_.shards(instruction.stage).size();
  if (instruction.opcode == Opcode::AllGather) {
    const auto copies = static_cast<std::int64_t>(shards);
    message.tensors = {message.tensors.at(0).unsqueeze(0).repeat_interleave(copies, 0)};
  } else if (instruction.opcode == Opcode::ReduceScatter) {
    for (auto& tensor : message.tensors) {
      const at::Tensor whole = std::exchange(tensor, in_parts_of_sequence(tensor, shards).variable_data());
      // Autograd has outputs too, as the roots of a graph, and does not read their values.
      if (instruction.payload == Payload::Activation) free_memory(whole);
    }
  } else {
    // Autograd has the same tensors, whose values it does not read again: the last operation of a layer is a sum or a
    // product.
    for (auto& tensor : message.tensors) tensor = tensor.contiguous().variable_data();
  }
  stream.record().wait();
  transport_->collective(channel_of(instruction), instruction, message.tensors);
  if (instruction.opcode == Opcode::ReduceScatter) {
    for (auto& tensor : message.tensors) tensor = tensor[own_shard(instruction)].clone();
  }
  message.ready = stream.record();
  ran(job, begin, message.ready);
  pass_on(instruction.payload, instruction, std::move(message));
}

void RankExecutor::use_machine(const Job& job)
{
  thread_local bool has_threads = false;
  if (!std::exchange(has_threads, true)) set_computing_threads(options_.threads);
  const Event begin = job.lane.stream.record();
  const Progress::Work work(options_.progress, job.step, job.instruction);
  machine_->run(job.step, job.position, job.instruction, job.lane.stream,
                [this](std::uint64_t step) { return facts_of(step); });
  ran(job, begin, job.lane.stream.record());
}

GradientFacts RankExecutor::facts_of(std::uint64_t step)
{
  if (!needs_gradient_sync(workload_)) return {};
  return is_alone_ ? parameters_.own_facts(step) : parameters_.facts(step);
}

void RankExecutor::compute(const Job& job)
{
  const Instruction& instruction = job.instruction;
  Stream& stream = job.lane.stream;
  const Seconds begin_on_host = steady_time();
  const Seconds thread_time_before = thread_time();
  Message inputs = inputs_of(job);
  stream.await(inputs);
  const bool is_slow = options_.slowdown > 1 || options_.takes_known_times;
  const Event begin = stream.record();
  if (is_slow) stream.begin_slow_work();
  std::optional<Progress::Work> work;
  if (!stream.is_on_gpu()) work.emplace(options_.progress, job.step, instruction);  // a GPU works later
  if (machine_) machine_->before_pass(job.position, instruction, stream);
  Message outputs = computed(job, std::move(inputs));
  if (machine_) machine_->after_pass(job.step, job.position, instruction, stream, !evaluates_);
  // A slower device ends later: the thread sleeps for the rest of its time. Only processor time is stretched, not waits
  // for a processor, so that emulation also works with more ranks than processors.
  if (is_slow && stream.is_on_gpu()) {
    stream.end_slow_work(options_.slowdown);
  } else if (is_slow) {
    const Seconds takes =
        options_.takes_known_times ? instruction.time : options_.slowdown * (thread_time() - thread_time_before);
    std::this_thread::sleep_for(std::chrono::duration<double>((begin_on_host + takes - steady_time()).value));
  }
  work.reset();
  outputs.ready = stream.record();
  ran(job, begin, outputs.ready);
  if (stream.is_on_gpu() && options_.progress != nullptr) {
    options_.progress->queued([begin] { return begin.passed(); }, [end = outputs.ready] { return end.passed(); });
  }
  hand_on(instruction, std::move(outputs));
}

Message RankExecutor::inputs_of(const Job& job)
{
  const Instruction& instruction = job.instruction;
  const std::uint32_t stage = instruction.stage;
  if (operators_ || stages_.model(stage).exchanged_passes() != nullptr) return {};
  if (instruction.opcode == Opcode::Forward) {
    if (stage == 0 && !has_data_server_) return micro_batch_data(job.step, instruction.microbatch);
    return (divides_sequence_ && stage > 0 ? gathered_ : arrived_)
        .take(address_of(Payload::Activation, stage, instruction));
  }
  if (makes_gradients(instruction) && (!stages_.is_last(stage) || stages_.is_divided(stage))) {
    return (divides_sequence_ && !stages_.is_last(stage) ? gathered_ : arrived_)
        .take(address_of(Payload::Gradient, stage, instruction));
  }
  return {};
}

Message RankExecutor::computed(const Job& job, Message inputs)
{
  const Instruction& instruction = job.instruction;
  StageModel& model = stages_.model(instruction.stage);
  if (ExchangedPasses* const passes = model.exchanged_passes();
      passes != nullptr && instruction.opcode != Opcode::Update) {
    if (instruction.opcode == Opcode::Forward) return passes->forward(instruction.microbatch);
    return makes_gradients(instruction) ? passes->backward(instruction.microbatch) : Message();
  }
  if (makes_gradients(instruction) && divides_sequence_ && instruction.stage > 0) {
    const Message whole = restored_.take(address_of(Payload::Activation, instruction.stage, instruction));
    job.lane.stream.await(whole);
    model.restore_inputs(instruction.microbatch, whole);
  }
  switch (instruction.opcode) {
    case Opcode::Forward:
      if (operators_) {
        operators_->forward(job.step, instruction, job.lane.stream);
        return {};
      }
      if (evaluates_) return model.evaluate(*options_.batches, job.step, instruction.microbatch, inputs);
      return model.forward(job.step, instruction.microbatch, std::move(inputs));
    case Opcode::Backward:
      if (operators_) {
        operators_->backward(job.step, instruction, model.loss_scale(), job.lane.stream);
        return {};
      }
      return model.backward(instruction.microbatch, inputs);
    case Opcode::BackwardInput:
      return model.backward_input(instruction.microbatch, inputs);
    case Opcode::BackwardWeight:
      model.backward_weight(instruction.microbatch);
      return {};
    case Opcode::Update:
      model.update(job.step, facts_of(job.step));
      return {};
    default:
      throw std::logic_error("an instruction that computes nothing");
  }
}

/// Leaves what a stage has computed to the neighbouring stage, or to the collective that makes it whole.
void RankExecutor::hand_on(const Instruction& instruction, Message outputs)
{
  const std::uint32_t stage = instruction.stage;
  const bool goes_forward = instruction.opcode == Opcode::Forward;
  if (operators_) return;  // which keep it
  const bool has_result =
      goes_forward ? !stages_.is_last(stage) || stages_.is_divided(stage) : makes_gradients(instruction) && stage > 0;
  if (!has_result) return;
  const ShardPass pass = goes_forward ? ShardPass::Forward : ShardPass::InputGradient;
  ExchangedPasses* const passes = stages_.model(stage).exchanged_passes();
  if (passes != nullptr && passes->ends_by_exchange(pass)) return;  // which has it
  leave(goes_forward ? Payload::Activation : Payload::Gradient, instruction, std::move(outputs));
}

/// Leaves what a replica or one of its shards has made.
void RankExecutor::leave(Payload payload, const Instruction& instruction, Message message)
{
  if (stages_.is_divided(instruction.stage)) {
    made_.put(address_of(payload, instruction.stage, instruction), std::move(message));
  } else {
    pass_on(payload, instruction, std::move(message));
  }
}

/// Leaves a whole result to the shards of the neighbouring stage that read this one's, on this rank or by messages;
/// that of the last stage to its own backward pass.
void RankExecutor::pass_on(Payload payload, const Instruction& instruction, Message message)
{
  const std::uint32_t stage = instruction.stage;
  const bool goes_forward = payload == Payload::Activation;
  if (goes_forward && stages_.is_last(stage)) {
    if (evaluates_) {
      stages_.model(stage).count(message);
      return lanes_.at(instruction.lane)->stream.record().wait();  // the sums are read on the compute lane's stream
    }
    return arrived_.put(address_of(Payload::Gradient, stage, instruction), std::move(message));
  }
  const std::uint32_t next = goes_forward ? stage + 1 : stage - 1;
  const auto& readers = stages_.ranks[next][stages_.patterns[next].replica_of(instruction.microbatch)];
  // As many shards take turns with this one as there are in its replica.
  for (std::size_t i = stages_.own.at(stage).placed.shard; i < readers.size(); i += stages_.shards(stage).size()) {
    if (readers[i] == rank_) {
      arrived_.put(address_of(payload, next, instruction), message);
    } else {
      leaving_.put(address_of(payload, stage, instruction, readers[i]), message);
    }
  }
}

/// Takes micro-batches from there; parts of them, where devices divide sequences.
void RankExecutor::use_batches(const BatchSource& batches)
{
  options_.batches = &batches;
  if (!workload_.context.divides()) return;
  parts_of_batches_ = batches_in_parts(batches, workload_.context.degree);
  options_.batches = parts_of_batches_.get();
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
  Stream& stream = lanes_.front()->stream;
  StepEnd last{step, {}, {}};
  {
    const Stream::Scope scope(stream);
    if (operators_) {
      if (has_last_stage()) last.loss.push_back(begin_copy(operators_->take_loss()));
    } else if (has_first_shard(last_stage()) && !evaluates_) {
      last.loss.push_back(begin_copy(stages_.patterns.back().replicas() > 1 ? parameters_.loss().at(0).to(at::kDouble)
                                                                            : stages_.model(last_stage()).take_loss()));
    }
    last.end = stream.record();
  }
  steps_in_flight_.push_back(std::move(last));
  while (!steps_in_flight_.empty() &&
         (steps_in_flight_.size() > most_in_flight || has_ended(steps_in_flight_.front()))) {
    report_step(steps_in_flight_.front(), ended);
    steps_in_flight_.pop_front();
  }
}

void RankExecutor::begin_evaluation(const Program& program, const BatchSource& batches, std::uint64_t steps)
{
  evaluates_ = true;
  program_ = &program;
  channels_ = same_channels(program, *training_);
  if (machine_) {
    lanes_.resize(1);  // the lanes of copies have other numbers
    machine_->switch_to(program);
  }
  add_lanes();
  use_batches(batches);
  options_.control = [steps](std::uint64_t step, bool stop_requested) {
    return StepControl{.checkpoint = false, .end = step + 1 == steps || stop_requested};
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
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    auto& times = report.lanes.at(lane).times;
    const auto on_device = lanes_[lane]->times();
    for (std::size_t i = 0; i < on_device.size(); ++i) std::tie(times[i].begin, times[i].end) = on_device[i];
  }
  for (std::size_t tier = 0; tier < tier_count; ++tier) report.peak_memory[tier] = meters_[tier].peak();
}

std::size_t RankExecutor::others_with_loss() const
{
  return divided_->ranks() - divided_->groups.back().first_rank - (has_last_stage() ? 1 : 0);
}

bool RankExecutor::has_ended(const StepEnd& step) const
{
  const bool has_all_losses = !operators_ || rank_ != 0 || board_->has_losses(step.step, others_with_loss());
  return has_all_losses && step.end.passed();
}

void RankExecutor::report_step(const StepEnd& step, const StepEnded& ended)
{
  const Seconds end = step.end.time();  // waits; the loss is complete after it
  std::optional<double> loss;
  if (!step.loss.empty()) loss = step.loss.front().item<double>();
  if (operators_ && rank_ != 0) {
    if (loss) board_->add_loss(step.step, rank_, *loss);
    loss.reset();
  } else if (operators_) {
    waits_->loss(step.step, [&](const Deadline& deadline) {
      loss = loss.value_or(0) + board_->await_losses(step.step, others_with_loss(), deadline);
    });
  }
  ended(step.step, end, loss);
}

}  // namespace isobar::exec
