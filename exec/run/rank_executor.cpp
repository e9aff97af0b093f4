#include "exec/run/rank_executor.hpp"

#include "core/base/clock.hpp"
#include "core/failure.hpp"
#include "core/program/chrome_trace.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/launch/rank_failures.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/device.hpp"
#include "exec/model/gpu.hpp"
#include "exec/model/tensor_slices.hpp"
#include "exec/run/tcp_transport.hpp"
#include "schedules/lowering/replicas.hpp"

#include <fmt/format.h>

#include <torch/torch.h>

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
      stages_(static_cast<std::uint32_t>(plan.stages.size())),
      has_data_server_(plan.data_server.has_value()),
      is_alone_(devices_of(plan).size() == 1),
      divides_sequence_(plan.stages.front().grid.form == ShardGrid::Form::Sequence),
      name_(names_of_ranks(plan).at(rank)),
      meter_(options.memory_cap),
      channels_(program.channels().size()),
      patterns_(schedules::microbatch_patterns(plan))
{
  std::iota(channels_.begin(), channels_.end(), std::size_t{0});
  for (const auto& placed : placed_shards(plan)) {
    if (placed.replica + placed.shard == 0) ranks_.emplace_back();
    if (placed.shard == 0) ranks_.back().emplace_back();
    ranks_.back().back().push_back(placed.rank);
  }
  const auto shards = shards_of_rank(plan, rank);
  meter_cpu_memory();
  if (shards.empty()) options_.device = "cpu";
  open_device(options_.device);
  add_lanes();
  const auto split = stages_that_split(program, rank, shards.size());
  const Stream::Scope scope(lanes_.front()->stream);
  for (const auto& placed : shards) {
    const auto stage = static_cast<std::uint32_t>(placed.stage);
    placed_[stage] = placed;
    last_layers_[stage] = plan.stages[stage].last_layer;
    StageOptions stage_options;
    stage_options.first_layer = plan.stages[stage].first_layer;
    stage_options.last_layer = plan.stages[stage].last_layer;
    stage_options.recomputed = plan.recompute;
    stage_options.microbatches = plan.goal.microbatches;
    stage_options.replica = placed.replica;
    stage_options.sync = plan.sync;
    const Stage& whole = plan.stages[stage];
    const Layer& first_layer = workload.layers[whole.first_layer];
    stage_options.has_shards = has_shards({whole});
    stage_options.is_divided_alike = are_divided_alike(whole);
    if (!stage_options.is_divided_alike) sync_groups_[stage] = sync_groups(first_layer, whole);
    stage_options.divides_sequence = divides_sequence_;
    stage_options.sites = sites_of(whole, stage_options.is_divided_alike ? placed.shard : 0);
    stage_options.shard = placed.shard;
    stage_options.units = units_of_shard(first_layer, whole.replicas[placed.replica], placed.shard);
    stage_options.splits_backward = split.contains(stage);
    stage_options.seed = options_.seed;
    stage_options.device = options_.device;
    stage_options.batches = options_.batches;
    work_on_device([&] { models_[stage] = std::make_unique<StageModel>(workload, stage_options); });
  }
}

/// Adds the lanes that `program_` has and no program before it had.
void RankExecutor::add_lanes()
{
  const auto& lanes = program_->lanes(rank_);
  for (std::size_t lane = lanes_.size(); lane < lanes.size(); ++lane) {
    const bool computes = lanes[lane].engine == Engine::Device;
    const auto kind = computes ? Stream::Kind::Computations : Stream::Kind::Transfers;
    lanes_.push_back(std::make_unique<DeviceLane>(options_.device, kind, meter_));
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
  return models_.contains(stages_ - 1);
}

bool RankExecutor::has_first_shard(std::size_t stage) const
{
  const auto found = placed_.find(static_cast<std::uint32_t>(stage));
  return found != placed_.end() && found->second.replica == 0 && found->second.shard == 0;
}

bool RankExecutor::is_among_shards(const Instruction& instruction) const
{
  const PlacedShard& placed = placed_.at(instruction.stage);
  const auto& shards = ranks_[placed.stage][placed.replica];
  const auto& ends = channel_at(instruction).ends;
  return std::all_of(ends.begin(), ends.end(),
                     [&](const End& end) { return std::find(shards.begin(), shards.end(), end.rank) != shards.end(); });
}

void RankExecutor::with_models(const std::function<void(std::size_t stage, StageModel& model)>& work)
{
  Stream& stream = lanes_.front()->stream;
  const Stream::Scope scope(stream);
  work_on_device([&] {
    for (auto& [stage, model] : models_) work(stage, *model);
    stream.record().wait();
  });
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
  if (job.lane.stream.is_on_gpu()) {
    range.emplace(name_of_event(instruction));
    await_events(job);
  }
  work_on_device([&] { run_on_stream(job); });
}

/// Orders the job after the work of the instructions that it waits for. Those are done on the host.
void RankExecutor::await_events(const Job& job) const
{
  for (const Wait& wait : job.instruction.waits) {
    if (wait.periods_back > job.step) continue;
    job.lane.stream.await(lanes_.at(wait.lane)->end_of(job.step - wait.periods_back, wait.count - 1));
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

void RankExecutor::run_on_stream(const Job& job)
{
  switch (job.instruction.opcode) {
    case Opcode::Forward:
    case Opcode::Backward:
    case Opcode::BackwardInput:
    case Opcode::BackwardWeight:
    case Opcode::Update:
      compute(job);
      return;
    case Opcode::Send:
      send(job);
      return;
    case Opcode::Recv:
      receive(job);
      return;
    case Opcode::AllReduce:
    case Opcode::ReduceScatter:
      reduce(job);
      return;
    case Opcode::AllGather:
      if (job.instruction.payload == Payload::Parameter) return gather_parameters(job);
      is_before_pass(role_of(job.instruction).value()) ? gather_sequence(job) : make_whole(job);
      return;
    case Opcode::AllToAll:
    case Opcode::Broadcast:
      break;
  }
  throw std::logic_error("a collective that no program has");
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
  const Message message = is_data_server()
                              ? micro_batch_data(job.step, instruction.microbatch)
                              : leaving_.take(address_of(instruction.payload, instruction.stage, instruction, reader));
  Stream& stream = job.lane.stream;
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
  ran(job, begin, message.ready);
  arrived_.put(address_of(instruction.payload, instruction.stage, instruction), std::move(message));
}

void RankExecutor::reduce(const Job& job)
{
  const Instruction& instruction = job.instruction;
  if (instruction.payload == Payload::GradientFacts) return reduce_facts(job);
  if (instruction.payload != Payload::ParameterGradient) return make_whole(job);
  is_among_shards(instruction) ? reduce_shared_gradients(job) : reduce_gradients(job);
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
  const PlacedShard& placed = placed_.at(instruction.stage);
  const auto address = address_of(instruction.payload, instruction.stage, instruction);
  const bool is_again = role_of(instruction) == ShardRole::KeptInputGather;
  Message message = is_again ? kept_.take(address) : arrived_.take(address);
  Stream& stream = job.lane.stream;
  stream.await(message);
  const Event begin = stream.record();
  if (role_of(instruction) == ShardRole::InputGather && !evaluates_) kept_.put(address, message);
  for (auto& tensor : message.tensors) {
    std::vector<std::int64_t> shape = {static_cast<std::int64_t>(ranks_[placed.stage][placed.replica].size())};
    shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
    const at::Tensor parts = at::empty(shape, tensor.options());
    parts[static_cast<std::int64_t>(placed.shard)].copy_(tensor);
    tensor = parts;
  }
  stream.record().wait();
  transport_->collective(channel_of(instruction), instruction, message.tensors);
  for (auto& tensor : message.tensors) tensor = joined_sequence(tensor);
  message.ready = stream.record();
  ran(job, begin, message.ready);
  (is_again ? restored_ : gathered_).put(address, std::move(message));
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
  const PlacedShard& placed = placed_.at(instruction.stage);
  const std::size_t shards = ranks_[placed.stage][placed.replica].size();
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
    for (auto& tensor : message.tensors) tensor = tensor[static_cast<std::int64_t>(placed.shard)].clone();
  }
  message.ready = stream.record();
  ran(job, begin, message.ready);
  pass_on(instruction.payload, instruction, std::move(message));
}

/// Adds up the gradients of the parameters that all shards have. Between the last backward and the update, which wait,
/// the compute lane leaves the model alone.
void RankExecutor::reduce_shared_gradients(const Job& job)
{
  Stream& stream = job.lane.stream;
  const Event begin = stream.record();
  const Tensors sums = model_of(job.instruction.stage).shared_gradients();
  stream.record().wait();
  if (!sums.empty()) transport_->collective(channel_of(job.instruction), job.instruction, sums);
  ran(job, begin, stream.record());
}

/// The gradient sync. Between the last backward, for which it waits, and the updates, which wait for it, the compute
/// lane leaves the models alone.
void RankExecutor::reduce_facts(const Job& job)
{
  const Event begin = job.lane.stream.record();
  const GradientFacts own = own_facts();
  const at::Tensor sums = at::tensor({own.sum_of_squares, own.not_finite}, at::kDouble);
  transport_->collective(channel_of(job.instruction), job.instruction, {sums});
  reduced_ = {sums[0].item<double>(), sums[1].item<double>()};
  ran(job, begin, job.lane.stream.record());
}

/// Adds up the gradients of a stage, and of those after it whose layers the instruction has, over their replicas, and
/// those of the last stage also their parts of the loss, the first value: so the first replica has it, even if each
/// gets a part. Between the last backward and the update of a stage, the compute lane leaves its model alone.
void RankExecutor::reduce_gradients(const Job& job)
{
  Stream& stream = job.lane.stream;
  const Event begin = stream.record();
  Instruction instruction = job.instruction;
  const Channel& channel = channel_at(instruction);
  std::vector<StageModel*> models;
  Tensors gradients;
  std::optional<at::Tensor> loss;
  for (const auto& [stage, model] : models_) {
    if (stage < instruction.stage || last_layers_.at(stage) > instruction.last_layer) continue;
    models.push_back(model.get());
    const Tensors own = gradients_of(stage, channel);
    gradients.insert(gradients.end(), own.begin(), own.end());
    const bool is_of_all_shards = channel.ends.size() > patterns_[stage].replicas();
    if (!is_last(stage) || (sync_groups_.contains(stage) && !is_of_all_shards)) continue;
    const bool has_loss = !is_of_all_shards || placed_.at(stage).shard == 0;
    loss = has_loss ? model->take_loss().to(at::kFloat) : at::zeros({}, at::Device(options_.device));
  }
  Tensors sums;
  if (loss) sums.push_back(*loss);
  for (const auto& gradient : gradients) sums.push_back(gradient.contiguous());
  const std::size_t replicas = patterns_[instruction.stage].replicas();
  if (size_of(sums) < replicas) instruction.opcode = Opcode::AllReduce;  // the first part would be empty
  stream.record().wait();
  if (!sums.empty()) transport_->collective(channel_of(instruction), instruction, sums);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& sum = sums[i + (loss ? 1 : 0)];
    if (!gradients[i].is_contiguous()) gradients[i].copy_(sum);
  }
  for (StageModel* model : models) model->keep_own_gradients();
  if (loss) loss_ = {*loss};
  ran(job, begin, stream.record());
}

Tensors RankExecutor::gradients_of(std::uint32_t stage, const Channel& channel) const
{
  StageModel& model = model_of(stage);
  const auto groups = sync_groups_.find(stage);
  if (groups == sync_groups_.end()) return model.gradients();
  if (channel.ends.size() > patterns_[stage].replicas()) return model.shared_gradients();
  Tensors gradients;
  for (const auto& [units, shards] : groups->second) {
    bool is_of_channel = true;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      is_of_channel = is_of_channel && channel.ends[i].rank == ranks_[stage][i][shards[i]];
    }
    if (!is_of_channel) continue;
    const Tensors own = model.gradients(units);
    gradients.insert(gradients.end(), own.begin(), own.end());
  }
  return gradients;
}

/// Gets the parameters of a stage that its other replicas have. Until then the compute lane leaves the model alone. The
/// values are divided as the sums of the gradients are, of the last stage after the loss.
void RankExecutor::gather_parameters(const Job& job)
{
  Stream& stream = job.lane.stream;
  const Event begin = stream.record();
  Tensors values = model_of(job.instruction.stage).gather();
  if (is_last(job.instruction.stage)) values.insert(values.begin(), at::zeros({1}, at::Device(options_.device)));
  stream.record().wait();
  transport_->collective(channel_of(job.instruction), job.instruction, values);
  ran(job, begin, stream.record());
}

GradientFacts RankExecutor::own_facts() const
{
  GradientFacts sums;
  for (const auto& [stage, model] : models_) {
    const GradientFacts facts = model->gradient_facts();
    sums.sum_of_squares += facts.sum_of_squares;
    sums.not_finite += facts.not_finite;
  }
  return sums;
}

void RankExecutor::compute(const Job& job)
{
  const Instruction& instruction = job.instruction;
  Stream& stream = job.lane.stream;
  const Seconds begin_on_host = steady_time();
  const Seconds thread_time_before = thread_time();
  Message inputs = inputs_of(job);
  stream.await(inputs);
  const bool is_slow = options_.slowdown > 1 || options_.speed;
  const Event begin = stream.record();
  if (is_slow) stream.begin_slow_work();
  std::optional<Progress::Work> work;
  if (!stream.is_on_gpu()) work.emplace(options_.progress, job.step, instruction);  // a GPU works later
  Message outputs = computed(job, std::move(inputs));
  // A slower device ends later: the thread sleeps for the rest of its time. Only processor time is stretched, not waits
  // for a processor, so that emulation also works with more ranks than processors.
  if (is_slow && stream.is_on_gpu()) {
    stream.end_slow_work(options_.slowdown);
  } else if (is_slow) {
    const Seconds takes =
        options_.speed ? instruction.work / *options_.speed : options_.slowdown * (thread_time() - thread_time_before);
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
  if (instruction.opcode == Opcode::Forward) {
    if (stage == 0 && !has_data_server_) return micro_batch_data(job.step, instruction.microbatch);
    return (divides_sequence_ && stage > 0 ? gathered_ : arrived_)
        .take(address_of(Payload::Activation, stage, instruction));
  }
  if (makes_gradients(instruction) && (!is_last(stage) || is_divided(stage))) {
    return (divides_sequence_ && !is_last(stage) ? gathered_ : arrived_)
        .take(address_of(Payload::Gradient, stage, instruction));
  }
  return {};
}

Message RankExecutor::computed(const Job& job, Message inputs)
{
  const Instruction& instruction = job.instruction;
  StageModel& model = model_of(instruction.stage);
  if (makes_gradients(instruction) && divides_sequence_ && instruction.stage > 0) {
    const Message whole = restored_.take(address_of(Payload::Activation, instruction.stage, instruction));
    job.lane.stream.await(whole);
    model.restore_inputs(instruction.microbatch, whole);
  }
  switch (instruction.opcode) {
    case Opcode::Forward:
      if (evaluates_) return model.evaluate(*options_.batches, job.step, instruction.microbatch, inputs);
      return model.forward(job.step, instruction.microbatch, std::move(inputs));
    case Opcode::Backward:
      return model.backward(instruction.microbatch, inputs);
    case Opcode::BackwardInput:
      return model.backward_input(instruction.microbatch, inputs);
    case Opcode::BackwardWeight:
      model.backward_weight(instruction.microbatch);
      return {};
    case Opcode::Update:
      // A rank alone has no gradient sync: its first update takes the facts of all its stages, before any changes.
      if (is_alone_ && instruction.stage == models_.begin()->first && needs_gradient_sync(workload_)) {
        reduced_ = own_facts();
      }
      model.update(reduced_);
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
  const bool has_result =
      goes_forward ? !is_last(stage) || is_divided(stage) : makes_gradients(instruction) && stage > 0;
  if (!has_result) return;
  const Payload payload = goes_forward ? Payload::Activation : Payload::Gradient;
  if (is_divided(stage)) {
    made_.put(address_of(payload, stage, instruction), std::move(outputs));
  } else {
    pass_on(payload, instruction, std::move(outputs));
  }
}

/// Leaves a whole result to the shards of the neighbouring stage that read this one's, on this rank or by messages;
/// that of the last stage to its own backward pass.
void RankExecutor::pass_on(Payload payload, const Instruction& instruction, Message message)
{
  const std::uint32_t stage = instruction.stage;
  const bool goes_forward = payload == Payload::Activation;
  if (goes_forward && is_last(stage)) {
    if (evaluates_) {
      model_of(stage).count(message);
      return lanes_.at(instruction.lane)->stream.record().wait();  // the sums are read on the compute lane's stream
    }
    return arrived_.put(address_of(Payload::Gradient, stage, instruction), std::move(message));
  }
  const std::uint32_t next = goes_forward ? stage + 1 : stage - 1;
  const auto& readers = ranks_[next][patterns_[next].replica_of(instruction.microbatch)];
  const PlacedShard& own = placed_.at(stage);
  // As many shards take turns with this one as there are in its replica.
  for (std::size_t i = own.shard; i < readers.size(); i += ranks_[own.stage][own.replica].size()) {
    if (readers[i] == rank_) {
      arrived_.put(address_of(payload, next, instruction), message);
    } else {
      leaving_.put(address_of(payload, stage, instruction, readers[i]), message);
    }
  }
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
    if (has_first_shard(stages_ - 1) && !evaluates_) {
      last.loss.push_back(begin_copy(patterns_.back().replicas() > 1 ? loss_.at(0).to(at::kDouble)
                                                                     : model_of(stages_ - 1).take_loss()));
    }
    last.end = stream.record();
  }
  steps_in_flight_.push_back(std::move(last));
  while (!steps_in_flight_.empty() &&
         (steps_in_flight_.size() > most_in_flight || steps_in_flight_.front().end.passed())) {
    report_step(steps_in_flight_.front(), ended);
    steps_in_flight_.pop_front();
  }
}

void RankExecutor::begin_evaluation(const Program& program, const BatchSource& batches, std::uint64_t steps)
{
  evaluates_ = true;
  program_ = &program;
  channels_ = same_channels(program, *training_);
  add_lanes();
  options_.batches = &batches;
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
  report.peak_memory = meter_.peak();
}

void RankExecutor::report_step(const StepEnd& step, const StepEnded& ended)
{
  const Seconds end = step.end.time();  // waits; the loss is complete after it
  ended(step.step, end, step.loss.empty() ? std::nullopt : std::optional(step.loss.front().item<double>()));
}

}  // namespace isobar::exec
