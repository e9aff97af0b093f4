#include "exec/spmd/operator_passes.hpp"

#include "core/failure.hpp"
#include "core/program/collective.hpp"
#include "core/spmd/reform_time.hpp"
#include "exec/model/batch.hpp"
#include "exec/rank/interpreter.hpp"
#include "exec/spmd/operators.hpp"
#include "exec/transport/tcp_transport.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// The passes of all ranks in float64, with updates of our own, against one device that computes the whole graph.
namespace isobar::exec::operator_passes_test {
namespace {

using spmd::Form;
using spmd::OperatorKind;
using testing_support::equal_shares;

constexpr std::uint64_t steps = 5;
constexpr double rate = 1e-4;
constexpr double tolerance = 1e-10;

/// One of each kind of model: with both ways to choose experts, and without any.
std::vector<std::pair<std::string, Workload>> small_models()
{
  const std::string bert = "trunk: bert\nsequence: 12\nvocabulary: 24\nunit: operator\n";
  const std::string vit = "trunk: vit\nimage: 8\npatch: 4\nclasses: 12\ncapacity_factor: 2\nunit: operator\n";
  const auto small = [](const std::string& text) { return testing_support::small_moe(text); };
  Workload dense = workload_from_text(
      "model: moe\nlayers: 1\nhidden: 12\nheads: 6\nintermediate: 24\nexperts: 6\nmicro_batch: 12\n"
      "optimizer: adam\n" +
          bert,
      "x.yaml");
  return {{"Plain", small("trunk: plain\nsequence: 12\ntop_k: 1\nunit: operator\n")},
          {"BertTop1", small(bert + "top_k: 1\n")},
          {"BertTop2", small(bert + "top_k: 2\n")},
          {"VitTop1", small(vit + "top_k: 1\n")},
          {"VitTop2", small(vit + "top_k: 2\n")},
          {"Dense", std::move(dense)}};
}

/// A workload and the values with which its parameters begin, by tensor.
struct Model {
  explicit Model(Workload of, double dropout = 0, at::ScalarType number = at::kDouble)
      : workload(std::move(of)), graph(*operator_graph_of(workload))
  {
    workload.training.dropout = dropout;
    auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(7);
    for (const auto& tensor : graph.tensors) {
      const bool is_parameter = graph.operators[tensor.producer].kind == OperatorKind::Parameter;
      first_values.push_back(is_parameter
                                 ? at::empty(TensorBlock::whole(tensor).size, number).uniform_(-0.5, 0.5, generator)
                                 : at::Tensor());
    }
    batches = synthetic_batches(workload);
  }

  Workload workload;
  spmd::OperatorGraph graph;
  Tensors first_values;
  std::unique_ptr<BatchSource> batches;
};

at::Tensor data_of(const Model& model, std::uint64_t step, std::uint64_t microbatch, std::size_t number)
{
  const RandomKey key{seed, step, microbatch};
  return number == 0 ? model.batches->inputs(key, "cpu").at(0) : model.batches->labels(key, "cpu");
}

at::Tensor slice_of(const at::Tensor& whole, const TensorBlock& block)
{
  at::Tensor slice = whole;
  for (std::size_t i = 0; i < block.size.size(); ++i) {
    slice = slice.narrow(static_cast<std::int64_t>(i), block.begin[i], block.size[i]);
  }
  return slice;
}

struct Results {
  std::vector<double> losses;
  Tensors parameters;  // by tensor
};

/// What one device computes, operator by operator.
Results expected_of(const Model& model, std::uint64_t microbatches)
{
  at::set_num_threads(1);
  Results results;
  for (const auto& values : model.first_values) {
    results.parameters.push_back(values.defined() ? values.clone().requires_grad_() : values);
  }
  const auto& moe = std::get<spmd::MoeSizes>(model.workload.model);
  for (std::uint64_t step = 0; step < steps; ++step) {
    double sum = 0;
    for (std::uint64_t k = 0; k < microbatches; ++k) {
      std::size_t data = 0;
      OperatorSettings settings = {.top_k = moe.top_k,
                                   .dropout = model.workload.training.dropout,
                                   .seed = seed,
                                   .step = step,
                                   .first_sample = k * model.workload.micro_batch};
      Tensors values = results.parameters;
      for (const auto& node : model.graph.operators) {
        if (node.kind == OperatorKind::Parameter) continue;
        if (node.kind == OperatorKind::Data) {
          const at::Tensor made = data_of(model, step, k, data++);
          values[node.outputs[0]] = made.is_floating_point() ? made.to(at::kDouble) : made;
          continue;
        }
        Tensors inputs;
        for (const auto input : node.inputs) inputs.push_back(values[input]);
        if (node.kind == OperatorKind::Output) {
          sum += inputs[0].item<double>();
          (inputs[0] / static_cast<double>(microbatches)).backward();
          continue;
        }
        const auto made =
            compute(model.graph, node, inputs, TensorBlock::whole(model.graph.tensors[node.outputs[0]]), settings);
        for (std::size_t i = 0; i < made.size(); ++i) values[node.outputs[i]] = made[i];
      }
    }
    results.losses.push_back(sum / static_cast<double>(microbatches));
    const at::NoGradGuard no_graph;
    for (const auto& parameter : results.parameters) {
      if (!parameter.defined() || !parameter.grad().defined()) continue;
      parameter.sub_(rate * parameter.grad());
      parameter.mutable_grad().reset();
    }
  }
  return results;
}

bool is_of_gradients(const Instruction& instruction)
{
  return instruction.payload == Payload::Gradient || instruction.payload == Payload::ParameterGradient;
}

/// How a rank may be wrong.
struct Fault {
  std::function<void(OperatorPlan& plan)> of_plan = [](OperatorPlan&) {};
  bool forgets_gradients = false;     // of the micro-batches before
  bool slices_own_gradients = false;  // and leaves out the addends of the others
  bool forgets_replicas = false;      // and keeps the gradients of its own
  bool sends_zeros = false;           // as gradients, to the group before
};

bool is_of_replicas(const Program& program, std::size_t rank, LaneId lane)
{
  return program.lanes(rank).at(lane).name == spmd::replica_lane;
}

/// Plays a rank's instructions, and takes steps of SGD.
class TrainingRank : public RankWork {
 public:
  TrainingRank(const Model& model, const OperatorPlan& plan, const Program& program, std::size_t rank,
               Transport& transport, const Fault& fault)
      : plan_(plan), program_(program), rank_(rank), transport_(transport), fault_(fault)
  {
    collectives_.sum = [this](const Instruction& instruction, const Tensors& tensors) {
      transport_.collective(channel_of(instruction), instruction, tensors);
    };
    collectives_.exchange = [this](const Instruction& instruction, const Tensors& outgoing, const Tensors& incoming) {
      if (fault_.slices_own_gradients && instruction.opcode == Opcode::ReduceScatter && is_of_gradients(instruction)) {
        for (std::size_t other = 0; other < incoming.size(); ++other) {
          if (other != rank_) incoming[other].zero_();
        }
        return;
      }
      transport_.exchange(channel_of(instruction), instruction, outgoing, incoming);
    };
    const OperatorPlace place = plan.place_of(rank);
    const TensorBlocks blocks(plan.graph, plan.groups[place.group].shares);
    for (std::size_t i = 0; i < plan.graph.operators.size(); ++i) {
      const auto& node = plan.graph.operators[i];
      if (plan.group_of(plan.division.part_of(i)) != place.group) continue;
      for (const std::size_t input : node.inputs) read_by_part_[plan.division.part_of(i)].insert(input);
      if (node.kind != OperatorKind::Parameter) continue;
      const auto block = blocks.of(node.outputs[0], plan.division.signatures[i].outputs[0], place.position);
      parameters_of_part_[plan.division.part_of(i)].push_back(parameters_.size());
      blocks_.emplace_back(node.outputs[0], block);
      parameters_.push_back(slice_of(model.first_values[node.outputs[0]], block).clone().requires_grad_());
    }
    for (std::size_t lane = 0; lane < program.lanes(rank).size(); ++lane) {
      streams_.push_back(std::make_unique<Stream>("cpu", Stream::Kind::Computations, meter_));
    }
    passes_ = std::make_unique<OperatorPasses>(
        plan_, model.workload, parameters_,
        OperatorOptions{.rank = rank,
                        .data = [&model](std::uint64_t step, std::uint64_t microbatch,
                                         std::size_t number) { return data_of(model, step, microbatch, number); },
                        .microbatches = microbatches(),
                        .seed = seed});
  }

  void run(std::uint64_t step, std::uint64_t /*position*/, const Instruction& instruction) override
  {
    Stream& stream = *streams_[instruction.lane];
    switch (instruction.opcode) {
      case Opcode::Forward:
        return passes_->forward(step, instruction, stream);
      case Opcode::Backward:
        if (fault_.forgets_gradients) clear_gradients_of_read(instruction.stage);
        return passes_->backward(step, instruction, 1, stream);
      case Opcode::Update: {
        const at::NoGradGuard no_graph;
        for (const std::size_t i : parameters_of_part_[instruction.stage]) {
          if (parameters_[i].grad().defined()) parameters_[i].sub_(rate * parameters_[i].grad());
        }
        return clear_gradients(instruction.stage);
      }
      case Opcode::Send: {
        Message message = passes_->leaving(other_rank(instruction), step, instruction, stream);
        double numbers = 0;
        for (const auto& tensor : message.tensors) numbers += static_cast<double>(tensor.numel());
        if (std::abs(numbers * sizeof(float) - instruction.size.value) > 1e-3) {
          throw std::runtime_error("a message has not the bytes of the program");
        }
        if (fault_.sends_zeros && instruction.payload == Payload::Gradient) {
          for (auto& tensor : message.tensors) tensor = at::zeros_like(tensor);
        }
        return transport_.send(channel_of(instruction), instruction, message);
      }
      case Opcode::Recv:
        return passes_->arrived(other_rank(instruction), step, instruction,
                                transport_.receive(channel_of(instruction), instruction), stream);
      default:
        if (!is_of_replicas(program_, rank_, instruction.lane)) {
          return passes_->reform(step, instruction, collectives_, stream);
        }
        if (!fault_.forgets_replicas) passes_->add_up_replicas(instruction, collectives_, stream);
    }
  }
  bool has_next_step(LaneId lane, std::uint64_t step) override
  {
    if (lane == compute_lane) losses_.push_back(is_in_last_group() ? passes_->take_loss().item<double>() : 0);
    return step + 1 < steps;
  }
  Bytes memory(Tier /*tier*/) const override { return Bytes(0); }
  void cancel() noexcept override { transport_.cancel(); }

  const std::vector<double>& losses() const { return losses_; }
  /// The largest error of a parameter relative to the largest value, over all of them.
  double error(const Tensors& expected) const
  {
    double largest = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& [tensor, block] = blocks_[i];
      if (parameters_[i].numel() == 0) continue;
      const at::Tensor error = (parameters_[i] - slice_of(expected[tensor], block)).abs().max();
      const double found = error.item<double>() / expected[tensor].abs().max().item<double>();
      largest = found <= largest ? largest : found;  // also what is not a number
    }
    return largest;
  }

 private:
  std::size_t channel_of(const Instruction& instruction) const
  {
    return program_.lanes(rank_)[instruction.lane].channel.value();
  }
  std::size_t other_rank(const Instruction& transfer) const
  {
    return other_end(program_.channels()[channel_of(transfer)], rank_, transfer.lane).rank;
  }
  bool is_in_last_group() const { return plan_.place_of(rank_).group + 1 == plan_.groups.size(); }
  std::uint64_t microbatches() const
  {
    std::uint64_t count = 0;
    const std::uint32_t first = program_.at(rank_, compute_lane, 0).stage;
    for (std::uint64_t k = 0; k < program_.length(rank_, compute_lane); ++k) {
      const Instruction instruction = program_.at(rank_, compute_lane, k);
      if (instruction.opcode == Opcode::Forward && instruction.stage == first) ++count;
    }
    return count;
  }
  void clear_gradients(std::size_t part)
  {
    for (const std::size_t i : parameters_of_part_[part]) parameters_[i].mutable_grad().reset();
  }

  /// Of the parameters that a part reads. Others may be summed meanwhile, those of the part itself among them.
  void clear_gradients_of_read(std::size_t part)
  {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (read_by_part_[part].count(blocks_[i].first) > 0) parameters_[i].mutable_grad().reset();
    }
  }

  const OperatorPlan& plan_;
  const Program& program_;
  std::size_t rank_;
  Transport& transport_;
  const Fault& fault_;
  Collectives collectives_;
  MemoryMeter meter_{Bytes(0)};
  std::vector<std::unique_ptr<Stream>> streams_;
  Tensors parameters_;
  std::vector<std::pair<std::size_t, TensorBlock>> blocks_;  // of the parameters, with their tensors
  std::map<std::size_t, std::vector<std::size_t>> parameters_of_part_;
  std::map<std::size_t, std::set<std::size_t>> read_by_part_;  // tensors of the graph
  std::unique_ptr<OperatorPasses> passes_;
  std::vector<double> losses_;
};

/// What ranks train by a plan: the losses, and the largest error of a parameter.
struct Trained {
  std::vector<double> losses = std::vector<double>(steps);
  double error = 0;
  std::vector<std::uint64_t> bytes_sent;  // by rank, over TCP
};

using Played = std::function<void(std::size_t rank, Transport& transport)>;

void play_in_process(const Program& program, const Played& play_rank)
{
  const auto transports = in_process_transports(program, Seconds(60));
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    threads.emplace_back([&, rank] { play_rank(rank, *transports[rank]); });
  }
}

std::vector<std::uint64_t> play_over_tcp(const Program& program, const Played& play_rank)
{
  std::vector<TcpListener> listeners;
  std::vector<Endpoint> endpoints;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    listeners.emplace_back(Endpoint{"127.0.0.1", 0});
    endpoints.push_back({"127.0.0.1", listeners.back().port()});
  }
  TcpOptions options;
  options.run_id = "operators";
  options.secret = std::make_shared<const Secret>("test", "what the ranks of the tests share");
  options.groups = groups_of(program);
  std::vector<std::uint64_t> sent(program.ranks());
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      TcpWorld world(rank, endpoints, links_of(program), options, std::move(listeners[rank]));
      const auto transport = tcp_transport(world, program, {time_limits(Seconds(0), Seconds(60)), nullptr}, false);
      const std::uint64_t before = world.bytes_sent();
      play_rank(rank, *transport);
      sent[rank] = world.bytes_sent() - before;
    });
  }
  threads.clear();
  return sent;
}

Trained trained_by(const Model& model, const Plan& plan, const Tensors& expected, Way way, const Fault& fault = {})
{
  const auto program = testing_support::unit_program(plan, model.workload);
  OperatorPlan divided = operator_plan_of(plan, model.workload);
  fault.of_plan(divided);
  Trained trained;
  std::mutex mutex;
  std::vector<std::string> failures;
  std::vector<std::vector<double>> losses(program->ranks());
  const Played play_rank = [&](std::size_t rank, Transport& transport) {
    at::set_num_threads(1);
    try {
      TrainingRank work(model, divided, *program, rank, transport, fault);
      play(*program, rank, 0, work, nullptr, [](std::uint64_t) {});
      const std::lock_guard lock(mutex);
      losses[rank] = work.losses();
      const double error = work.error(expected);
      trained.error = error <= trained.error ? trained.error : error;
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      if (failure_of(error).kind != Failure::Kind::Cancelled) failures.emplace_back(error.what());
      transport.cancel();
    }
  };
  if (way == Way::Tcp) {
    trained.bytes_sent = play_over_tcp(*program, play_rank);
  } else {
    play_in_process(*program, play_rank);
  }
  if (!failures.empty()) throw std::runtime_error(failures.front());
  for (const auto& of_rank : losses) {
    for (std::size_t step = 0; step < steps; ++step) trained.losses[step] += of_rank.at(step);
  }
  return trained;
}

/// Of devices, shares that are not equal, and one of which is zero.
std::vector<double> unequal_shares(std::size_t devices, std::mt19937_64& random)
{
  std::vector<double> shares(devices);
  double sum = 0;
  for (auto& share : shares) sum += share = static_cast<double>(1 + random() % 7);
  if (devices > 2) sum -= std::exchange(shares[random() % devices], 0);
  for (auto& share : shares) share /= sum;
  return shares;
}

/// A random division into groups that have parameters each, from which passes know that numbers are float64 here.
spmd::Division random_groups(const spmd::OperatorGraph& graph, std::size_t groups, std::mt19937_64& random)
{
  while (true) {
    auto division = testing_support::random_division(graph, spmd::Rules::Corrected, random, groups);
    std::set<std::size_t> with_parameters;
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
      if (graph.operators[i].kind != OperatorKind::Parameter) continue;
      with_parameters.insert(division.group_of(division.part_of(i)));
    }
    if (with_parameters.size() == groups) return division;
  }
}

class OperatorPassesOf : public testing::TestWithParam<std::size_t> {};

TEST_P(OperatorPassesOf, ARandomDivisionHaveTheLossesAndParametersOfOneDevice)
{
  std::mt19937_64 random(GetParam());
  const Workload workload = small_models().at(GetParam()).second;
  const std::vector<std::string> schedules = {"duplex", "1f1b", "gpipe"};
  for (const std::uint64_t microbatches : {1U, 2U, 4U}) {
    const double dropout = microbatches == 2 ? 0 : 0.3;
    const Model model(workload, dropout);
    const Results expected = expected_of(model, microbatches);
    EXPECT_NE(expected.losses.front(), expected.losses.back());
    for (const std::size_t devices : {1U, 2U, 3U, 4U}) {
      for (const bool is_equal : {true, false}) {
        const auto shares = is_equal ? equal_shares(devices) : unequal_shares(devices, random);
        const auto division = testing_support::random_division(model.graph, spmd::Rules::Corrected, random);
        const std::string& schedule = schedules[random() % schedules.size()];
        Plan plan = testing_support::plan_of(model.graph, division, shares, schedule, microbatches);
        if (random() % 2 == 0) testing_support::add_random_buckets(plan, workload, random);
        const Way way = random() % 3 == 0 ? Way::Tcp : Way::InProcess;
        SCOPED_TRACE(fmt::format("{} micro-batches on {} {} devices, {}, dropout {}, {}", microbatches, devices,
                                 is_equal ? "equal" : "unequal", schedule, dropout,
                                 way == Way::Tcp ? "over TCP" : "in process"));
        const Trained found = trained_by(model, plan, expected.parameters, way);
        expect_close(found.losses, expected.losses, tolerance);
        EXPECT_LE(found.error, tolerance);
      }
    }
  }
}

TEST_P(OperatorPassesOf, APipelineOfGroupsHaveTheLossesAndParametersOfOneDevice)
{
  std::mt19937_64 random(40 + GetParam());
  const Workload workload = small_models().at(GetParam()).second;
  for (const std::uint64_t microbatches : {1U, 2U, 4U}) {
    const double dropout = microbatches == 2 ? 0 : 0.3;
    const Model model(workload, dropout);
    const Results expected = expected_of(model, microbatches);
    for (const auto& [groups, replicas] : {std::pair(2U, 1U), {2U, 2U}, {3U, 1U}}) {
      const auto graph = operator_graph_of(workload, workload.micro_batch / replicas);
      const auto division = random_groups(graph, groups, random);
      std::vector<std::vector<double>> shares;
      std::string text;
      for (std::size_t i = 0; i < groups; ++i) {
        shares.push_back(unequal_shares(1 + random() % 3, random));
        text += fmt::format(" {}", shares.back().size());
      }
      Plan plan = testing_support::plan_of_groups(graph, division, shares, "duplex", microbatches, replicas);
      if (random() % 2 == 0) testing_support::add_random_buckets(plan, workload, random);
      const Way way = random() % 3 == 0 ? Way::Tcp : Way::InProcess;
      SCOPED_TRACE(fmt::format("{} micro-batches, {} replicas, groups of{}, dropout {}, {}", microbatches, replicas,
                               text, dropout, way == Way::Tcp ? "over TCP" : "in process"));
      const Trained found = trained_by(model, plan, expected.parameters, way);
      expect_close(found.losses, expected.losses, tolerance);
      EXPECT_LE(found.error, tolerance);
    }
  }
}

TEST_P(OperatorPassesOf, AnyReplicasHaveTheLossesAndParametersOfOneDevice)
{
  std::mt19937_64 random(20 + GetParam());
  const Workload workload = small_models().at(GetParam()).second;
  for (const std::uint64_t microbatches : {1U, 2U}) {
    const double dropout = microbatches == 1 ? 0 : 0.3;
    const Model model(workload, dropout);
    const Results expected = expected_of(model, microbatches);
    for (const std::size_t replicas : {2U, 3U}) {
      const auto graph = operator_graph_of(workload, workload.micro_batch / replicas);
      for (const auto& shares : {std::vector<double>{1}, unequal_shares(replicas, random)}) {
        const auto division = testing_support::random_division(graph, spmd::Rules::Corrected, random);
        const std::string schedule = random() % 2 == 0 ? "duplex" : "1f1b";
        Plan plan = testing_support::plan_of(graph, division, shares, schedule, microbatches, replicas);
        if (random() % 2 == 0) testing_support::add_random_buckets(plan, workload, random);
        const Way way = random() % 3 == 0 ? Way::Tcp : Way::InProcess;
        SCOPED_TRACE(fmt::format("{} micro-batches on {} replicas of {} devices, {}, dropout {}, {}", microbatches,
                                 replicas, shares.size(), schedule, dropout,
                                 way == Way::Tcp ? "over TCP" : "in process"));
        const Trained found = trained_by(model, plan, expected.parameters, way);
        expect_close(found.losses, expected.losses, tolerance);
        EXPECT_LE(found.error, tolerance);
      }
    }
  }
}

std::string name_of_model(const testing::TestParamInfo<std::size_t>& tested)
{
  return small_models().at(tested.param).first;
}
INSTANTIATE_TEST_SUITE_P(OperatorPasses, OperatorPassesOf, testing::Range(std::size_t{0}, small_models().size()),
                         name_of_model);

/// Trains random plans, as long as three have the fault, and checks that it changes what they train. Returns how many
/// have it. `spoil` makes the fault, if the plan may have it.
std::size_t count_of_wrong(const Model& model, const std::function<bool(OperatorPlan& plan)>& spoil, Fault fault = {},
                           const std::vector<std::vector<double>>& shares = {equal_shares(3)}, std::size_t replicas = 1)
{
  constexpr std::uint64_t microbatches = 2;
  const Results expected = expected_of(model, microbatches);
  const auto graph = operator_graph_of(model.workload, model.workload.micro_batch / replicas);
  std::mt19937_64 random(1);
  std::size_t wrong = 0;
  for (int attempt = 0; attempt < 60 && wrong < 3; ++attempt) {
    const auto division = random_groups(graph, shares.size(), random);
    const Plan plan = testing_support::plan_of_groups(graph, division, shares, "duplex", microbatches, replicas);
    OperatorPlan copy = operator_plan_of(plan, model.workload);
    if (!spoil(copy)) continue;
    ++wrong;
    fault.of_plan = [&](OperatorPlan& changed) { spoil(changed); };
    const Trained found = trained_by(model, plan, expected.parameters, Way::InProcess, fault);
    EXPECT_FALSE(found.error <= 100 * tolerance) << attempt;
  }
  return wrong;
}

TEST(OperatorPasses, AddABiasOnceOverAllDevices)
{
  const Model model(testing_support::moes_by_operators().at(1));
  // Each device adds the whole bias to its addend of the product.
  const auto spoil = [](OperatorPlan& plan) {
    for (auto& reform : plan.reforms) {
      if (!reform.is_parameter || reform.forward != spmd::ReformKind::Pad) continue;
      plan.division.signatures[plan.graph.tensors[reform.tensor].producer].outputs[0] = spmd::replicate;
      reform.from = spmd::replicate;
      reform.forward = spmd::ReformKind::Replicate;
      return true;
    }
    return false;
  };
  EXPECT_GE(count_of_wrong(model, spoil), 1U);
}

TEST(OperatorPasses, AddUpTheGradientsOfMicroBatches)
{
  const Model model(testing_support::moes_by_operators().at(0));
  Fault fault;
  fault.forgets_gradients = true;
  EXPECT_EQ(count_of_wrong(
                model, [](OperatorPlan&) { return true; }, fault),
            3U);
}

TEST(OperatorPasses, AddUpTheGradientsOfReplicas)
{
  const Model model(testing_support::moes_by_operators().at(0));
  Fault fault;
  fault.forgets_replicas = true;
  EXPECT_EQ(count_of_wrong(
                model, [](OperatorPlan&) { return true; }, fault, {{1}}, 3),
            3U);
}

TEST(OperatorPasses, TakeGradientsFromTheNextGroup)
{
  const Model model(testing_support::moes_by_operators().at(0));
  Fault fault;
  fault.sends_zeros = true;
  EXPECT_EQ(count_of_wrong(model, [](OperatorPlan&) { return true; }, fault, {equal_shares(2), {1}}), 3U);
}

TEST(OperatorPasses, TakeGradientsBackByConjugates)
{
  const Model model(testing_support::moes_by_operators().at(0));
  const auto gathers = [](const OperatorPlan& plan) {
    return std::any_of(plan.reforms.begin(), plan.reforms.end(), [&](const auto& reform) {
      return reform.forward == spmd::ReformKind::AllGather && plan.graph.has_gradient(reform.tensor);
    });
  };
  Fault fault;
  fault.slices_own_gradients = true;
  EXPECT_EQ(count_of_wrong(model, gathers, fault), 3U);
}

/// Of a number, a token or a label.
std::uint64_t bytes_of_element(const Model& model, std::size_t tensor)
{
  std::size_t data = 0;
  for (const auto& node : model.graph.operators) {
    if (node.kind != OperatorKind::Data) continue;
    if (node.outputs[0] == tensor) return data_of(model, 0, 0, data).element_size();
    ++data;
  }
  return sizeof(float);
}

std::uint64_t elements_of(const TensorBlock& block)
{
  return static_cast<std::uint64_t>(c10::multiply_integers(block.size));
}

/// Numbers that a rank has of the parameters of a part that have gradients.
std::uint64_t numbers_of_part(const OperatorPlan& plan, const TensorBlocks& blocks, std::size_t part,
                              std::size_t position)
{
  std::uint64_t count = 0;
  for (std::size_t i = plan.division.parts[part]; i < plan.division.end_of(part); ++i) {
    const auto& node = plan.graph.operators[i];
    if (node.kind != OperatorKind::Parameter || !plan.graph.has_gradient(node.outputs[0])) continue;
    count += elements_of(blocks.of(node.outputs[0], plan.division.signatures[i].outputs[0], position));
  }
  return count;
}

/// Numbers that end `end` of `ends` sends for the sum of `count` of them by the ring.
std::uint64_t numbers_of_sum(std::size_t end, std::size_t ends, std::uint64_t count)
{
  std::uint64_t numbers = 0;
  for (const auto& step : steps_of(Opcode::AllReduce, end, ends, count, Algorithm::Ring)) numbers += step.sent.size();
  return numbers;
}

/// Bytes that a rank sends for the collectives of one step, by the formulas of docs/spmd.md.
std::uint64_t bytes_by_formulas(const Model& model, const Program& program, const OperatorPlan& plan, std::size_t rank)
{
  const OperatorPlace place = plan.place_of(rank);
  const auto& shares = plan.groups[place.group].shares;
  const std::size_t devices = shares.size();
  const TensorBlocks blocks(plan.graph, shares);
  const auto numbers_of = [&](std::size_t tensor, Form form) {
    return elements_of(blocks.of(tensor, form, place.position));
  };
  const auto bytes_of = [&](const Instruction& instruction) {
    if (is_of_replicas(program, rank, instruction.lane)) {
      const std::uint64_t count = numbers_of_part(plan, blocks, instruction.stage, place.position);
      return numbers_of_sum(place.replica, plan.replicas, count) * sizeof(float);
    }
    const auto& reform = plan.reforms[instruction.place];
    const std::size_t tensor = reform.tensor;
    const bool is_back = is_of_gradients(instruction);
    const Form from = is_back ? gradient_form(reform.to) : reform.from;
    const Form to = is_back ? gradient_form(reform.from) : reform.to;
    std::uint64_t whole = numbers_of(tensor, spmd::full);
    for (const auto& bucket : plan.buckets) {
      if (instruction.payload != Payload::ParameterGradient || bucket.back() != instruction.place) continue;
      for (std::size_t i = 0; i + 1 < bucket.size(); ++i) {
        whole += numbers_of(plan.reforms[bucket[i]].tensor, spmd::full);
      }
    }
    std::uint64_t numbers = 0;
    if (instruction.opcode == Opcode::AllReduce) {
      numbers = numbers_of_sum(place.position, devices, whole);
    } else if (instruction.opcode == Opcode::AllGather) {
      numbers = (devices - 1) * numbers_of(tensor, from);
    } else if (instruction.opcode == Opcode::ReduceScatter) {
      numbers = whole - numbers_of(tensor, to);
    } else {
      // Its part of one dimension of the slices of another, without what stays.
      const std::uint64_t own = numbers_of(tensor, from);
      numbers = own - own * numbers_of(tensor, to) / whole;
    }
    return numbers * bytes_of_element(model, tensor);
  };
  std::uint64_t bytes = 0;
  for (LaneId lane = 1; lane < program.lanes(rank).size(); ++lane) {
    for (std::uint64_t k = 0; k < program.length(rank, lane); ++k) bytes += bytes_of(program.at(rank, lane, k));
  }
  return bytes;
}

/// Bytes that all ranks send for the collectives of one step, as the program describes them and the simulator plays
/// them. It counts tokens and labels as numbers.
double bytes_of_program(const Model& model, const Program& program, const OperatorPlan& plan)
{
  double bytes = 0;
  for (const Channel& channel : program.channels()) {
    const End& end = channel.ends.front();
    for (std::uint64_t k = 0; k < program.length(end.rank, end.lane); ++k) {
      const Instruction first = program.at(end.rank, end.lane, k);
      const std::uint64_t of_element = is_of_replicas(program, end.rank, end.lane)
                                           ? sizeof(float)
                                           : bytes_of_element(model, plan.reforms[first.place].tensor);
      std::vector<Bytes> sizes;
      std::vector<Bytes> results;
      for (const auto& [rank, lane] : channel.ends) {
        const Instruction instruction = program.at(rank, lane, k);
        sizes.push_back(instruction.size);
        results.push_back(instruction.result);
      }
      if (has_equal_parts(results)) results.clear();
      for (const auto& round : rounds_of(first.opcode, sizes, Algorithm::Ring, {}, results)) {
        for (const auto& flow : round) bytes += static_cast<double>(of_element) / sizeof(float) * flow.size().value;
      }
    }
  }
  return bytes;
}

TEST(OperatorPasses, SendTheBytesOfTheFormulasAndOfTheProgramOverTcp)
{
  std::mt19937_64 random(3);
  for (const auto& workload : testing_support::moes_by_operators()) {
    const Model model(workload, 0, at::kFloat);
    for (const std::size_t replicas : {1U, 2U}) {
      const auto graph = operator_graph_of(workload, workload.micro_batch / replicas);
      for (const bool is_equal : {true, false}) {
        const auto shares = is_equal ? equal_shares(3) : unequal_shares(3, random);
        const auto division = testing_support::random_division(graph, spmd::Rules::Corrected, random);
        Plan plan = testing_support::plan_of(graph, division, shares, "duplex", 2, replicas);
        if (!is_equal) testing_support::add_random_buckets(plan, workload, random);
        const auto program = testing_support::unit_program(plan, model.workload);
        const OperatorPlan divided = operator_plan_of(plan, model.workload);
        const Trained found = trained_by(model, plan, model.first_values, Way::Tcp);
        for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
          EXPECT_EQ(found.bytes_sent[rank], steps * bytes_by_formulas(model, *program, divided, rank)) << rank;
        }
        const auto sent = std::accumulate(found.bytes_sent.begin(), found.bytes_sent.end(), std::uint64_t{0});
        EXPECT_EQ(static_cast<double>(sent), steps * bytes_of_program(model, *program, divided));
      }
    }
  }
}

}  // namespace
}  // namespace isobar::exec::operator_passes_test
