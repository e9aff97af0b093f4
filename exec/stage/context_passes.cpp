#include "exec/stage/context_passes.hpp"

#include "core/errors.hpp"
#include "exec/stage/graph_piece.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <optional>
#include <utility>

namespace isobar::exec {

namespace {

using Number = ProjectedTokens::Number;

const DividedAttention& attention_of(const LayerModule& module)
{
  const DividedAttention* const attention = module.attention();
  ensure(attention != nullptr, "a layer whose sequences are exchanged is an attention");
  return *attention;
}

/// Keys and values as one tensor, which travels.
at::Tensor block_of(const at::Tensor& keys, const at::Tensor& values)
{
  return at::cat({keys, values}, -1);
}

std::pair<at::Tensor, at::Tensor> keys_and_values(const at::Tensor& block, std::int64_t width_of_keys)
{
  return {block.narrow(-1, 0, width_of_keys), block.narrow(-1, width_of_keys, block.size(-1) - width_of_keys)};
}

}  // namespace

struct ContextPasses::MicroBatch final : InFlight {
  at::Tensor residual;
  ProjectedTokens tokens;  // of the part, without a graph
  GraphPiece projecting;
  // By some heads over whole sequences:
  ProjectedTokens of_sequence;
  GraphPiece attending;
  // Or by the own queries:
  std::unique_ptr<BlockAttention> blocks;
  Tensors gathered;  // blocks of keys and values, by part
  at::Tensor heads;  // what attention gives, with `all-to-all` for whole sequences at first
  GraphPiece finishing;
  at::Tensor heads_gradient, gate_gradient, residual_gradient;
  Tensors gradients = Tensors(3);  // of queries, keys and values
};

ContextPasses::ContextPasses(const Workload& workload, const StageOptions& options, const LayerModule& module,
                             std::string name, std::size_t updates)
    : ExchangedPasses(workload, options, std::move(name), updates),
      attention_(attention_of(module)),
      how_(workload.context.exchange),
      part_{options.replica % workload.context.degree, workload.context.degree}
{
}

bool ContextPasses::ends_by_exchange(ShardPass pass) const
{
  if (how_ == ContextExchange::AllToAll) return true;
  return how_ == ContextExchange::AllGather && pass == ShardPass::InputGradient;
}

std::unique_ptr<ExchangedPasses::InFlight> ContextPasses::begin() const
{
  return std::make_unique<MicroBatch>();
}

/// What is exchanged in a role, in its order (replica_collectives).
std::vector<ContextPasses::Move> ContextPasses::moves_of(ShardRole role) const
{
  using enum Move;
  const bool is_to_all = how_ == ContextExchange::AllToAll;
  const bool is_ring = how_ == ContextExchange::Ring;
  std::vector<Move> moves;
  const auto add = [&](std::initializer_list<Move> more) { moves.insert(moves.end(), more); };
  const auto add_inputs = [&] {
    if (is_to_all) return add({SendQueries, SendKeys, SendValues});
    add({is_ring ? RingForward : GatherKeys});
  };
  switch (role) {
    case ShardRole::ExchangeInputs:
      add_inputs();
      break;
    case ShardRole::ExchangeOutputs:
      if (is_to_all) add({ReturnOutputs});
      break;
    case ShardRole::ExchangeGradients:
      if (recomputes()) {
        add_inputs();
        if (is_to_all) add({ReturnOutputs});
      }
      add({is_to_all ? SendOutputGradients : is_ring ? RingBackward : GatherKeysAgain});
      break;
    case ShardRole::ExchangeInputGradients:
      is_to_all ? add({ReturnQueryGradients, ReturnKeyGradients, ReturnValueGradients}) : add({ReduceKeyGradients});
      break;
    default:
      break;
  }
  return moves;
}

std::optional<Message> ContextPasses::exchange(InFlight& in_flight, ShardRole role, std::size_t number,
                                               const Meeting& meeting)
{
  ensure(meeting.devices == part_.parts && meeting.own == part_.index, "the parts of a sequence meet in their order");
  auto& own = static_cast<MicroBatch&>(in_flight);
  const auto moves = moves_of(role);
  if (role == ShardRole::ExchangeGradients && number == 0) own.is_again = true;
  auto made = make(moves.at(number), own, meeting);
  const bool is_last = number + 1 == moves.size();
  if (!is_last || is_before_pass(role)) return std::nullopt;
  return made;
}

std::optional<Message> ContextPasses::make(Move move, MicroBatch& own, const Meeting& meeting)
{
  const at::NoGradGuard no_graph;
  const auto send = [&](Number which) {
    own.of_sequence.tensors.resize(Number::Gate + 1);
    own.of_sequence.tensors[which] = heads_of_sequence(own.tokens.tensors[which], meeting);
  };
  const auto bring_back = [&](Number which) { own.gradients[which] = heads_of_part(own.gradients[which], meeting); };
  switch (move) {
    case Move::SendQueries:
      project(own);
      send(Number::Query);
      break;
    case Move::SendKeys:
      send(Number::Keys);
      break;
    case Move::SendValues:
      send(Number::Values);
      break;
    case Move::ReturnOutputs:
      if (own.is_again) attend(own);
      own.heads = heads_of_part(own.heads, meeting);
      return finish(own);
    case Move::SendOutputGradients:
      finish_backward(own);
      own.heads_gradient = heads_of_sequence(own.heads_gradient, meeting);
      break;
    case Move::ReturnQueryGradients:
      bring_back(Number::Query);
      break;
    case Move::ReturnKeyGradients:
      bring_back(Number::Keys);
      break;
    case Move::ReturnValueGradients:
      bring_back(Number::Values);
      return project_backward(own);
    case Move::GatherKeys:
      project(own);
      own.gathered = gathered(block_of(own.tokens.tensors[Number::Keys], own.tokens.tensors[Number::Values]), meeting);
      break;
    case Move::GatherKeysAgain:
      if (recomputes()) {
        attend(own);
        finish(own);
      }
      finish_backward(own);
      begin_backward(own);
      own.gathered = gathered(block_of(own.tokens.tensors[Number::Keys], own.tokens.tensors[Number::Values]), meeting);
      break;
    case Move::ReduceKeyGradients: {
      Tensors incoming;
      for (const auto& block : own.gathered) incoming.push_back(at::empty_like(block));
      meeting.exchange(own.gathered, incoming);
      at::Tensor sum = own.gathered[part_.index];
      for (std::size_t part = 0; part < incoming.size(); ++part) {
        if (part != part_.index) sum = sum + incoming[part];
      }
      std::tie(own.gradients[Number::Keys], own.gradients[Number::Values]) =
          keys_and_values(sum, own.tokens.tensors[Number::Keys].size(-1));
      return project_backward(own);
    }
    case Move::RingForward:
      project(own);
      go_around(own, meeting);
      break;
    case Move::RingBackward:
      if (recomputes()) {
        attend(own);
        finish(own);
      }
      finish_backward(own);
      begin_backward(own);
      go_around_backward(own, meeting);
      break;
  }
  return std::nullopt;
}

/// Computes queries, keys and values of the part's tokens.
void ContextPasses::project(MicroBatch& own)
{
  if (!own.residual.defined()) own.residual = own.arrived.tensors.at(0);
  const at::Tensor residual = records(own) ? leaf_of(own.residual) : own.residual;
  run(own, [&] { own.tokens = attention_.project(residual); });
  if (records(own)) own.projecting = {{residual}, own.tokens.tensors};
  for (auto& tensor : own.tokens.tensors) {
    if (tensor.defined()) tensor = tensor.detach();
  }
  if (how_ == ContextExchange::AllToAll) return;
  const at::Tensor& query = own.tokens.tensors[Number::Query];
  own.blocks = std::make_unique<BlockAttention>(attention_.rules(), part_, query, attention_.sinks(),
                                                attention_.kept(query, own.key));
}

/// The gradients of the layer's input.
Message ContextPasses::project_backward(MicroBatch& own) const
{
  const GraphPiece piece = std::exchange(own.projecting, {});
  Tensors gradients = own.gradients;
  gradients.push_back(own.gate_gradient);
  run(own, [&] { go_backward(piece, gradients); });
  Message message;
  message.tensors = {gradient_of(piece.inputs.front()) + own.residual_gradient};
  message.differentiable = {false};
  return message;
}

/// Computes what of attention is left between the exchanges.
void ContextPasses::attend(MicroBatch& own)
{
  if (how_ != ContextExchange::AllToAll) {
    const at::Tensor& keys = own.tokens.tensors[Number::Keys];
    if (how_ == ContextExchange::Ring) {
      own.blocks->add(keys, own.tokens.tensors[Number::Values], part_.index);
    } else {
      for (std::size_t part = 0; part < part_.parts; ++part) {
        const auto [of_part, values] = keys_and_values(own.gathered[part], keys.size(-1));
        own.blocks->add(of_part, values, part);
      }
      own.gathered.clear();
    }
    own.heads = own.blocks->outputs();
    return;
  }
  ProjectedTokens tokens = std::exchange(own.of_sequence, {});
  if (records(own)) {
    for (auto& tensor : tokens.tensors) tensor = leaf_of(tensor);
  }
  run(own, [&] { own.heads = attention_.attend(tokens, {part_.index, part_.index + 1, part_.parts}, own.key); });
  if (records(own)) own.attending = {std::move(tokens.tensors), {own.heads}};
  own.heads = own.heads.detach();
}

/// Computes the layer's output. What the backward pass does not need is freed.
Message ContextPasses::finish(MicroBatch& own)
{
  const auto leaf = [&](const at::Tensor& tensor) { return records(own) ? leaf_of(tensor) : tensor; };
  const at::Tensor heads = leaf(std::exchange(own.heads, {}));
  const at::Tensor gate = leaf(own.tokens.tensors[Number::Gate]);
  const at::Tensor residual = leaf(own.residual);
  at::Tensor output;
  run(own, [&] { output = attention_.finish(heads, gate, residual, own.key); });
  if (records(own)) {
    own.finishing = {{heads, gate, residual}, {output}};
  } else {
    own.blocks.reset();
  }
  if (!records(own) || how_ == ContextExchange::AllToAll) own.tokens = {};
  return message_to_next(own, output);
}

void ContextPasses::finish_backward(MicroBatch& own) const
{
  const GraphPiece piece = std::exchange(own.finishing, {});
  run(own, [&] { go_backward(piece, own.arrived.tensors); });
  own.heads_gradient = gradient_of(piece.inputs[0]);
  own.gate_gradient = gradient_of(piece.inputs[1]);
  own.residual_gradient = gradient_of(piece.inputs[2]);
  own.arrived = {};
}

void ContextPasses::begin_backward(MicroBatch& own) const
{
  own.blocks->begin_backward(std::exchange(own.heads_gradient, {}));
}

Message ContextPasses::forward(InFlight& in_flight)
{
  const at::NoGradGuard no_graph;
  auto& own = static_cast<MicroBatch&>(in_flight);
  attend(own);
  if (how_ == ContextExchange::AllToAll) return {};
  return finish(own);
}

Message ContextPasses::backward(InFlight& in_flight)
{
  const at::NoGradGuard no_graph;
  auto& own = static_cast<MicroBatch&>(in_flight);
  if (how_ == ContextExchange::AllToAll) {
    const GraphPiece piece = std::exchange(own.attending, {});
    run(own, [&] { go_backward(piece, {std::exchange(own.heads_gradient, {})}); });
    for (const Number which : {Number::Query, Number::Keys, Number::Values}) {
      own.gradients[which] = gradient_of(piece.inputs[which]);
    }
    return {};
  }
  const at::Tensor& keys = own.tokens.tensors[Number::Keys];
  if (how_ == ContextExchange::AllGather) {
    for (std::size_t part = 0; part < part_.parts; ++part) {
      const auto [of_part, values] = keys_and_values(own.gathered[part], keys.size(-1));
      const auto gradients = own.blocks->add_backward(of_part, values, part);
      own.gathered[part] = block_of(gradients.first, gradients.second);
    }
  } else {
    const auto of_own = own.blocks->add_backward(keys, own.tokens.tensors[Number::Values], part_.index);
    own.gradients[Number::Keys] = own.gradients[Number::Keys] + of_own.first;
    own.gradients[Number::Values] = own.gradients[Number::Values] + of_own.second;
  }
  own.gradients[Number::Query] = own.blocks->query_gradient();
  if (const at::Tensor sinks = attention_.sinks(); sinks.defined()) {
    at::Tensor& gradient = sinks.mutable_grad();
    const at::Tensor more = own.blocks->sink_gradient().view_as(sinks);
    gradient = gradient.defined() ? gradient + more : more;
  }
  own.blocks.reset();
  return how_ == ContextExchange::Ring ? project_backward(own) : Message();
}

/// Brings each device some heads of all tokens. @returns [samples, own heads, sequence, width], in order
at::Tensor ContextPasses::heads_of_sequence(const at::Tensor& heads_of_part, const Meeting& meeting) const
{
  Tensors outgoing, incoming;
  for (const auto& heads : heads_of_part.chunk(static_cast<std::int64_t>(part_.parts), 1)) {
    outgoing.push_back(heads.contiguous());
    incoming.push_back(at::empty_like(outgoing.back()));
  }
  incoming[part_.index] = outgoing[part_.index];
  meeting.exchange(outgoing, incoming);
  const auto by_part = at::cat(incoming, 2);
  return by_part.index_select(2, positions_by_part(part_.parts, by_part.size(2)).argsort());
}

/// The reverse. @returns [samples, heads, tokens of the part, width]
at::Tensor ContextPasses::heads_of_part(const at::Tensor& heads_of_sequence, const Meeting& meeting) const
{
  Tensors outgoing, incoming;
  for (std::size_t part = 0; part < part_.parts; ++part) {
    const auto positions = SequencePart{part, part_.parts}.positions(heads_of_sequence.size(2));
    outgoing.push_back(heads_of_sequence.index_select(2, positions));
    incoming.push_back(at::empty_like(outgoing.back()));
  }
  incoming[part_.index] = outgoing[part_.index];
  meeting.exchange(outgoing, incoming);
  return at::cat(incoming, 1);
}

/// The blocks of all parts.
Tensors ContextPasses::gathered(const at::Tensor& block, const Meeting& meeting) const
{
  const at::Tensor own = block.contiguous();
  Tensors blocks;
  for (std::size_t part = 0; part < part_.parts; ++part) {
    blocks.push_back(part == part_.index ? own : at::empty_like(own));
  }
  meeting.exchange(Tensors(part_.parts, own), blocks);
  return blocks;
}

namespace {

/// Sends a tensor to the next device of a ring. @returns the like that comes from the one before
at::Tensor passed_on(const at::Tensor& tensor, const ExchangedPasses::Meeting& meeting)
{
  const at::Tensor nothing = at::empty({0}, tensor.options());
  Tensors outgoing(meeting.devices, nothing);
  Tensors incoming(meeting.devices, nothing);
  const at::Tensor comes = at::empty(tensor.sizes(), tensor.options());
  outgoing[(meeting.own + 1) % meeting.devices] = tensor.contiguous();
  incoming[(meeting.own + meeting.devices - 1) % meeting.devices] = comes;
  meeting.exchange(outgoing, incoming);
  return comes;
}

}  // namespace

/// Sends keys and values around, and attends to those of the other parts.
void ContextPasses::go_around(MicroBatch& own, const Meeting& meeting)
{
  const at::Tensor& keys = own.tokens.tensors[Number::Keys];
  at::Tensor block = block_of(keys, own.tokens.tensors[Number::Values]);
  for (std::size_t step = 1; step < part_.parts; ++step) {
    block = passed_on(block, meeting);
    const auto [of_part, values] = keys_and_values(block, keys.size(-1));
    own.blocks->add(of_part, values, (part_.index + part_.parts - step) % part_.parts);
  }
}

/// Sends keys and values around again, and after them what the devices that have seen them add to their gradients,
/// which come back from the last one.
void ContextPasses::go_around_backward(MicroBatch& own, const Meeting& meeting)
{
  const at::Tensor& keys = own.tokens.tensors[Number::Keys];
  at::Tensor block = block_of(keys, own.tokens.tensors[Number::Values]);
  at::Tensor gradients;
  for (std::size_t step = 1; step < part_.parts; ++step) {
    if (!gradients.defined()) {
      block = passed_on(block, meeting);
    } else {
      const auto both = passed_on(at::stack({block, gradients}), meeting).unbind();
      block = both[0];
      gradients = both[1];
    }
    const auto [of_part, values] = keys_and_values(block, keys.size(-1));
    const auto more = own.blocks->add_backward(of_part, values, (part_.index + part_.parts - step) % part_.parts);
    const auto added = block_of(more.first, more.second);
    gradients = gradients.defined() ? gradients + added : added;
  }
  std::tie(own.gradients[Number::Keys], own.gradients[Number::Values]) =
      keys_and_values(passed_on(gradients, meeting), keys.size(-1));
}

}  // namespace isobar::exec
