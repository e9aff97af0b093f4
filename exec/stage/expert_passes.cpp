#include "exec/stage/expert_passes.hpp"

#include "core/errors.hpp"
#include "exec/stage/graph_piece.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numeric>
#include <utility>

namespace isobar::exec {

namespace {

using Meeting = ExchangedPasses::Meeting;

const DividedExperts& experts_of(const LayerModule& module)
{
  const DividedExperts* const experts = module.experts();
  ensure(experts != nullptr, "a layer whose experts are divided has some");
  return *experts;
}

std::vector<std::int64_t> values_in(const at::Tensor& tensor)
{
  const auto* const begin = tensor.const_data_ptr<std::int64_t>();
  return std::vector<std::int64_t>(begin, begin + tensor.numel());
}

/// Sends rows to each device, in its order, of which this one keeps its own. @returns those that come from each
Tensors exchanged(const at::Tensor& rows, const std::vector<std::int64_t>& leaving,
                  const std::vector<std::int64_t>& coming, const Meeting& meeting)
{
  Tensors outgoing = rows.split_with_sizes(leaving, 0);
  Tensors incoming;
  for (std::size_t i = 0; i < meeting.devices; ++i) {
    auto shape = rows.sizes().vec();
    shape.front() = coming[i];
    incoming.push_back(i == meeting.own ? outgoing[i] : at::empty(shape, rows.options()));
    outgoing[i] = outgoing[i].contiguous();
  }
  meeting.exchange(outgoing, incoming);
  return incoming;
}

/// The rows that all devices have, `counts` of each.
at::Tensor gathered(const at::Tensor& rows, const std::vector<std::int64_t>& counts, const Meeting& meeting)
{
  const at::Tensor own = rows.contiguous();
  Tensors incoming;
  for (std::size_t i = 0; i < meeting.devices; ++i) {
    auto shape = rows.sizes().vec();
    shape.front() = counts[i];
    incoming.push_back(i == meeting.own ? own : at::empty(shape, rows.options()));
  }
  meeting.exchange(Tensors(meeting.devices, own), incoming);
  return at::cat(incoming);
}

/// The sum of what all devices have made of the own rows, `counts` of each. Adds in the order of the devices.
at::Tensor added_up(const at::Tensor& rows, const std::vector<std::int64_t>& counts, const Meeting& meeting)
{
  const Tensors of_devices =
      exchanged(rows, counts, std::vector<std::int64_t>(meeting.devices, counts[meeting.own]), meeting);
  return std::accumulate(of_devices.begin() + 1, of_devices.end(), of_devices.front());
}

}  // namespace

struct ExpertPasses::MicroBatch final : InFlight {
  at::Tensor residual;
  RoutedTokens routed;
  // How many rows go to and come from each device, and how many those are that each shard has gathered.
  std::vector<std::int64_t> leaving, coming, of_shards;
  at::Tensor counts;  // of the rows that have come, by device and own expert
  at::Tensor rows;    // those, or what experts make of them
  at::Tensor shared;  // what the shared expert gives
  GraphPiece routing, computing, combining;
  at::Tensor row_gradients;  // of what experts have made, then of the rows
  at::Tensor residual_gradient, weight_gradient, shared_gradient, token_gradient;
};

ExpertPasses::ExpertPasses(const Workload& workload, const StageOptions& options, const LayerModule& module,
                           std::string name, std::size_t updates)
    : ExchangedPasses(workload, options, std::move(name), updates),
      experts_(experts_of(module)),
      gathers_(options.has_shards && !workload.experts.are_whole)
{
}

std::unique_ptr<ExchangedPasses::InFlight> ExpertPasses::begin() const
{
  return std::make_unique<MicroBatch>();
}

/// What is exchanged in a role, in its order (replica_collectives).
std::vector<ExpertPasses::Move> ExpertPasses::moves_of(ShardRole role) const
{
  using enum Move;
  std::vector<Move> moves;
  const auto add = [&](Move move, Move among_shards, bool is_first) {
    if (gathers_ && !is_first) moves.push_back(among_shards);
    moves.push_back(move);
    if (gathers_ && is_first) moves.push_back(among_shards);
  };
  switch (role) {
    case ShardRole::DispatchTokens:
      add(DispatchRows, GatherRows, true);
      break;
    case ShardRole::CombineOutputs:
      add(ReturnOutputs, AddUpOutputs, false);
      break;
    case ShardRole::DispatchGradients:
      if (recomputes()) {
        add(DispatchRows, GatherRows, true);
        add(ReturnOutputs, AddUpOutputs, false);
      }
      add(DispatchGradients, GatherGradients, true);
      break;
    case ShardRole::CombineInputGradients:
      add(ReturnGradients, AddUpGradients, false);
      break;
    default:
      break;
  }
  return moves;
}

std::optional<Message> ExpertPasses::exchange(InFlight& in_flight, ShardRole role, std::size_t number,
                                              const Meeting& meeting)
{
  const at::NoGradGuard no_graph;
  auto& own = static_cast<MicroBatch&>(in_flight);
  const auto moves = moves_of(role);
  if (role == ShardRole::DispatchGradients && number == 0) own.is_again = true;
  auto made = make(moves.at(number), own, meeting);
  const bool is_last = number + 1 == moves.size();
  if (!is_last || is_before_pass(role)) return std::nullopt;
  return made;
}

std::optional<Message> ExpertPasses::make(Move move, MicroBatch& own, const Meeting& meeting)
{
  switch (move) {
    case Move::DispatchRows:
      route(own, meeting);
      break;
    case Move::GatherRows:
      gather_rows(own, meeting);
      break;
    case Move::AddUpOutputs:
      if (own.is_again) compute(own);
      own.rows = added_up(own.rows, own.of_shards, meeting);
      break;
    case Move::ReturnOutputs:
      if (own.is_again && !gathers_) compute(own);
      own.rows = at::cat(exchanged(own.rows, own.coming, own.leaving, meeting));
      return combine(own);
    case Move::DispatchGradients:
      begin_backward(own);
      own.row_gradients = at::cat(exchanged(own.row_gradients, own.leaving, own.coming, meeting));
      break;
    case Move::GatherGradients:
      own.row_gradients = gathered(own.row_gradients, own.of_shards, meeting);
      break;
    case Move::AddUpGradients:
      own.row_gradients = added_up(own.row_gradients, own.of_shards, meeting);
      break;
    case Move::ReturnGradients:
      own.row_gradients = at::cat(exchanged(own.row_gradients, own.coming, own.leaving, meeting));
      return end_backward(own);
  }
  return std::nullopt;
}

/// Chooses the experts of the own tokens, and sends these there.
void ExpertPasses::route(MicroBatch& own, const Meeting& meeting)
{
  using Which = RoutedTokens::Number;
  if (!own.residual.defined()) own.residual = own.arrived.tensors.at(0).detach();
  const at::Tensor residual = records(own) ? leaf_of(own.residual) : own.residual;
  run(own, [&] { own.routed = experts_.route(residual); });
  Tensors& routed = own.routed.tensors;
  if (records(own)) own.routing = {{residual}, {routed[Which::Rows], routed[Which::Tokens], routed[Which::Weights]}};
  const at::Tensor rows = std::exchange(routed[Which::Rows], {}).detach().contiguous();
  const at::Tensor& of_experts = routed[Which::Counts];
  const auto devices = static_cast<std::int64_t>(meeting.devices);
  const std::int64_t own_experts = of_experts.numel() / devices;
  const std::vector<std::int64_t> each(meeting.devices, own_experts);
  own.counts = at::cat(exchanged(of_experts, each, each, meeting)).view({devices, own_experts});
  own.leaving = values_in(of_experts.view({devices, own_experts}).sum(1));
  own.coming = values_in(own.counts.sum(1));
  own.rows = at::cat(exchanged(rows, own.leaving, own.coming, meeting));
}

/// Brings the rows that have come to a shard to all of a replica.
void ExpertPasses::gather_rows(MicroBatch& own, const Meeting& meeting)
{
  const std::vector<std::int64_t> each(meeting.devices, own.counts.size(0));
  const at::Tensor of_all = gathered(own.counts, each, meeting);
  own.of_shards = values_in(of_all.view({static_cast<std::int64_t>(meeting.devices), -1}).sum(1));
  own.counts = of_all;
  own.rows = gathered(own.rows, own.of_shards, meeting);
}

/// Computes the rows that have come, and the shared expert of the own tokens.
void ExpertPasses::compute(MicroBatch& own)
{
  const at::Tensor& routed = own.routed.tensors[RoutedTokens::Tokens];
  const at::Tensor rows = records(own) ? leaf_of(own.rows) : own.rows;
  const at::Tensor tokens = records(own) ? leaf_of(routed) : routed;
  ComputedExperts computed;
  run(own, [&] { computed = experts_.compute(rows, own.counts, tokens); });
  if (records(own)) own.computing = {{rows, tokens}, computed.tensors};
  own.rows = computed.tensors[ComputedExperts::Rows].detach().contiguous();
  own.shared = computed.tensors[ComputedExperts::Shared];
}

/// Computes the layer's output, of what experts have given for the rows that had left.
Message ExpertPasses::combine(MicroBatch& own)
{
  const auto leaf = [&](const at::Tensor& tensor) { return records(own) ? leaf_of(tensor) : tensor; };
  const ComputedExperts computed = {{leaf(std::exchange(own.rows, {})), leaf(std::exchange(own.shared, {}))}};
  RoutedTokens routed = std::exchange(own.routed, {});
  at::Tensor& weights = routed.tensors[RoutedTokens::Weights];
  weights = leaf(weights);
  const at::Tensor residual = leaf(own.residual);
  at::Tensor output;
  run(own, [&] { output = experts_.combine(computed, routed, residual); });
  if (records(own)) {
    own.combining = {
        {computed.tensors[ComputedExperts::Rows], residual, weights, computed.tensors[ComputedExperts::Shared]},
        {output}};
    own.residual = at::Tensor();
  }
  return message_to_next(own, output);
}

void ExpertPasses::begin_backward(MicroBatch& own) const
{
  const GraphPiece piece = std::exchange(own.combining, {});
  run(own, [&] { go_backward(piece, own.arrived.tensors); });
  own.arrived = {};
  own.row_gradients = gradient_of(piece.inputs[0]).contiguous();
  own.residual_gradient = gradient_of(piece.inputs[1]);
  own.weight_gradient = gradient_of(piece.inputs[2]);
  own.shared_gradient = gradient_of(piece.inputs[3]);
}

Message ExpertPasses::end_backward(MicroBatch& own) const
{
  const GraphPiece piece = std::exchange(own.routing, {});
  run(own, [&] { go_backward(piece, {own.row_gradients, own.token_gradient, own.weight_gradient}); });
  Message message;
  message.tensors = {gradient_of(piece.inputs[0]) + own.residual_gradient};
  message.differentiable = {false};
  return message;
}

Message ExpertPasses::forward(InFlight& in_flight)
{
  const at::NoGradGuard no_graph;
  compute(static_cast<MicroBatch&>(in_flight));
  return {};
}

Message ExpertPasses::backward(InFlight& in_flight)
{
  const at::NoGradGuard no_graph;
  auto& own = static_cast<MicroBatch&>(in_flight);
  const GraphPiece piece = std::exchange(own.computing, {});
  run(own, [&] { go_backward(piece, {own.row_gradients, own.shared_gradient}); });
  own.row_gradients = gradient_of(piece.inputs[0]).contiguous();
  own.token_gradient = gradient_of(piece.inputs[1]);
  return {};
}

}  // namespace isobar::exec
