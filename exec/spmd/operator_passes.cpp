#include "exec/spmd/operator_passes.hpp"

#include "core/errors.hpp"
#include "core/spmd/pieces.hpp"
#include "core/spmd/reform_time.hpp"
#include "exec/device/autocast.hpp"
#include "exec/device/message.hpp"
#include "exec/spmd/crossings.hpp"
#include "exec/spmd/operators.hpp"
#include "exec/spmd/tensor_store.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace isobar::exec {

namespace {

using spmd::Form;
using spmd::OperatorKind;
using spmd::PlacedReform;
using spmd::ReformKind;

/// What a part keeps of a micro-batch until its backward pass.
struct Pass {
  std::map<std::pair<std::size_t, bool>, at::Tensor> leaves;  // by tensor, and whether it is reformed
  std::vector<std::pair<std::size_t, at::Tensor>> outputs;    // that other parts or reforms read, by tensor
  at::Tensor loss;                                            // this rank's addend, if the part has it
};

/// Tensors within the forward pass through a part.
struct Made {
  std::map<std::size_t, at::Tensor> by_operators;
  std::map<std::size_t, at::Tensor> by_free_reforms;
};

}  // namespace

class OperatorPasses::Impl {
 public:
  Impl(const OperatorPlan& plan, const Workload& workload, Tensors parameters, const OperatorOptions& options);

  void forward(std::uint64_t step, std::size_t part, std::uint64_t microbatch, Stream& stream);
  void backward(std::uint64_t step, std::size_t part, std::uint64_t microbatch, double loss_scale, Stream& stream);
  void reform(std::uint64_t step, const Instruction& instruction, const Collectives& collectives, Stream& stream);
  void add_up_replicas(const Instruction& instruction, const Collectives& collectives, Stream& stream);
  Message leaving(std::size_t reader, std::uint64_t step, const Instruction& send, Stream& stream);
  void arrived(std::size_t sender, std::uint64_t step, const Instruction& receive, const Message& message,
               Stream& stream)
  {
    (receive.payload == Payload::Gradient ? returning_ : arriving_)
        .receive(sender, step, receive.microbatch, message, stream);
  }
  at::Tensor take_loss()
  {
    ensure(!losses_.empty(), "a rank has a part of the loss after a step");
    const Tensors losses = std::exchange(losses_, {});
    return at::stack(losses).to(at::kDouble).sum() / static_cast<double>(options_.microbatches);
  }

 private:
  /// A micro-batch of a step on a stream.
  struct Place {
    std::uint64_t step;
    std::uint64_t microbatch;
    Stream& stream;

    TensorKey key(std::size_t tensor, bool is_reformed) const { return {step, microbatch, tensor, is_reformed}; }
  };
  /// What a collective is made with.
  struct Meeting {
    const Instruction& instruction;
    const Collectives& collectives;
    Stream& stream;
  };

  bool is_alone() const { return blocks_.devices() == 1; }
  bool is_collective(const PlacedReform& reform) const { return !is_alone() && spmd::opcode_of(reform.forward); }
  TensorBlock own_block(std::size_t tensor, Form form) const { return blocks_.of(tensor, form, own_.position); }
  at::Tensor in_dtype(const at::Tensor& tensor) const
  {
    return tensor.is_floating_point() ? tensor.to(dtype_) : tensor;
  }
  at::Tensor own_slice(const at::Tensor& whole, std::size_t tensor, Form form) const
  {
    const TensorBlock block = own_block(tensor, form);
    return whole.narrow(form.dimension, block.begin[form.dimension], block.size[form.dimension]);
  }

  at::Tensor zeros(const std::vector<std::int64_t>& size) const
  {
    return at::zeros(size, at::TensorOptions(at::Device(options_.device)).dtype(dtype_));
  }

  at::Tensor read(const Place& place, std::size_t tensor, Form form, Pass& pass, Made& made);
  at::Tensor leaf(const Place& place, std::size_t tensor, bool is_reformed, Pass& pass);
  at::Tensor value_of(const Place& place, std::size_t tensor);
  at::Tensor value_of_source(const Place& place, std::size_t tensor) const;
  at::Tensor reformed_freely(const at::Tensor& value, const PlacedReform& reform) const;
  at::Tensor reformed(ReformKind kind, std::size_t tensor, at::Tensor value, Form from, Form to,
                      const Meeting& meeting) const;
  void add_up_bucket(std::size_t last, const Meeting& meeting);
  void add_up(const std::vector<std::size_t>& parameters, const Meeting& meeting);
  void take_back_parameter(std::uint64_t step, const PlacedReform& reform, const Meeting& meeting);
  void add_gradient(const TensorKey& key, const at::Tensor& gradient, Stream& stream);
  at::Tensor take_gradient(const Place& place, std::size_t tensor);
  OperatorSettings settings_of(const Place& place) const;

  const OperatorPlan& plan_;
  const Workload& workload_;
  OperatorOptions options_;
  OperatorPlace own_;
  const OperatorGroup& group_;
  TensorBlocks blocks_;
  std::uint64_t samples_;  // of a replica
  std::uint64_t first_sample_;
  at::ScalarType dtype_ = at::kFloat;
  // By tensor:
  Tensors parameters_;  // undefined for others
  std::vector<Form> forms_;
  std::vector<const PlacedReform*> reforms_;  // null if there is none
  std::vector<std::size_t> last_readers_;     // operators; 0 without one

  std::vector<std::size_t> from_before_;  // tensors of groups before that this one reads, without parameters

  TensorStore values_;
  TensorStore gradients_;
  TensorStore returned_gradients_;  // from the next group, of what it reads
  LeavingTensors leaving_;
  LeavingTensors leaving_gradients_;
  ArrivingTensors arriving_;
  ArrivingTensors returning_;
  std::map<std::pair<std::size_t, std::uint64_t>, Pass> passes_;  // by part and micro-batch
  Tensors losses_;
};

OperatorPasses::Impl::Impl(const OperatorPlan& plan, const Workload& workload, Tensors parameters,
                           const OperatorOptions& options)
    : plan_(plan),
      workload_(workload),
      options_(options),
      own_(plan.place_of(options.rank)),
      group_(plan.groups.at(own_.group)),
      blocks_(plan.graph, group_.shares),
      samples_(spmd::samples_of(plan.graph)),
      first_sample_(own_.replica * samples_),
      parameters_(plan.graph.tensors.size()),
      forms_(plan.graph.tensors.size()),
      reforms_(plan.graph.tensors.size()),
      last_readers_(plan.graph.tensors.size()),
      leaving_(overlaps_of(plan, options.rank, /*is_next=*/true, /*only_with_gradients=*/false)),
      leaving_gradients_(overlaps_of(plan, options.rank, /*is_next=*/false, /*only_with_gradients=*/true)),
      arriving_(overlaps_of(plan, options.rank, /*is_next=*/false, /*only_with_gradients=*/false), values_),
      returning_(overlaps_of(plan, options.rank, /*is_next=*/true, /*only_with_gradients=*/true), returned_gradients_)
{
  const std::size_t first = plan.division.parts[group_.first_part];
  const std::size_t end = plan.division.end_of(group_.end_part - 1);
  std::set<std::size_t> from_before;
  auto next = parameters.begin();
  for (std::size_t i = 0; i < plan.graph.operators.size(); ++i) {
    const auto& node = plan.graph.operators[i];
    const bool is_own = first <= i && i < end;
    for (const std::size_t input : node.inputs) {
      last_readers_[input] = i;
      if (is_own && plan.graph.tensors[input].producer < first) from_before.insert(input);
    }
    for (std::size_t k = 0; k < node.outputs.size(); ++k) {
      forms_[node.outputs[k]] = plan.division.signatures[i].outputs[k];
    }
    if (node.kind != OperatorKind::Parameter || !is_own) continue;
    ensure(next != parameters.end(), "each parameter of the group is given");
    parameters_[node.outputs[0]] = std::move(*next++);
    dtype_ = parameters_[node.outputs[0]].scalar_type();
  }
  if (workload.dtype != DType::Float32) dtype_ = workload.dtype == DType::BFloat16 ? at::kBFloat16 : at::kHalf;
  for (const auto& reform : plan.reforms) {
    if (plan.group_of(reform.part) == own_.group) reforms_[reform.tensor] = &reform;
  }
  from_before_.assign(from_before.begin(), from_before.end());
}

OperatorSettings OperatorPasses::Impl::settings_of(const Place& place) const
{
  OperatorSettings settings;
  settings.top_k = std::get<spmd::MoeSizes>(workload_.model).top_k;
  settings.dropout = workload_.training.dropout;
  settings.seed = options_.seed;
  settings.step = place.step;
  settings.first_sample = place.microbatch * workload_.micro_batch + first_sample_;
  settings.device = options_.device;
  return settings;
}

void OperatorPasses::Impl::forward(std::uint64_t step, std::size_t part, std::uint64_t microbatch, Stream& stream)
{
  const Place place{step, microbatch, stream};
  const Autocast autocast(workload_.dtype, options_.device);
  const OperatorSettings settings = settings_of(place);
  const std::size_t end = plan_.division.end_of(part);
  Pass pass;
  Made made;
  for (std::size_t i = plan_.division.parts[part]; i < end; ++i) {
    const auto& node = plan_.graph.operators[i];
    const auto& signature = plan_.division.signatures[i];
    if (node.kind == OperatorKind::Data || node.kind == OperatorKind::Parameter) continue;
    Tensors inputs;
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      inputs.push_back(read(place, node.inputs[k], signature.inputs[k], pass, made));
      if (last_readers_[node.inputs[k]] != i) continue;
      made.by_operators.erase(node.inputs[k]);
      made.by_free_reforms.erase(node.inputs[k]);
    }
    if (node.kind == OperatorKind::Output) {
      pass.loss = inputs.front();
      losses_.push_back(pass.loss.detach());
      continue;
    }
    const Tensors outputs =
        compute(plan_.graph, node, inputs, own_block(node.outputs[0], signature.outputs[0]), settings);
    for (std::size_t k = 0; k < outputs.size(); ++k) made.by_operators[node.outputs[k]] = in_dtype(outputs[k]);
  }
  for (const auto& [tensor, value] : made.by_operators) {
    if (last_readers_[tensor] < end) continue;
    values_.put(place.key(tensor, false), value.detach(), stream);
    pass.outputs.emplace_back(tensor, value);
  }
  passes_[{part, microbatch}] = std::move(pass);
}

/// A tensor in the form in which an operator reads it.
at::Tensor OperatorPasses::Impl::read(const Place& place, std::size_t tensor, Form form, Pass& pass, Made& made)
{
  const bool is_reformed = forms_[tensor] != form;
  if (is_reformed && is_collective(*reforms_[tensor])) return leaf(place, tensor, /*is_reformed=*/true, pass);
  const auto found = made.by_operators.find(tensor);
  const at::Tensor value = parameters_[tensor].defined()      ? parameters_[tensor]
                           : found != made.by_operators.end() ? found->second
                                                              : leaf(place, tensor, /*is_reformed=*/false, pass);
  if (!is_reformed || is_alone()) return value;
  at::Tensor& reformed = made.by_free_reforms[tensor];
  if (!reformed.defined()) reformed = reformed_freely(value, *reforms_[tensor]);
  return reformed;
}

/// A tensor from elsewhere, as a leaf of the part's graph. That of a gathered parameter is the same for all passes.
at::Tensor OperatorPasses::Impl::leaf(const Place& place, std::size_t tensor, bool is_reformed, Pass& pass)
{
  at::Tensor& leaf = pass.leaves[{tensor, is_reformed}];
  if (leaf.defined()) return leaf;
  if (plan_.graph.is_parameter(tensor)) {
    leaf = values_.find({place.step, 0, tensor, true}, place.stream);
  } else {
    const at::Tensor value =
        is_reformed ? values_.find(place.key(tensor, true), place.stream) : value_of(place, tensor);
    if (value.defined()) leaf = value.detach().requires_grad_(plan_.graph.has_gradient(tensor));
  }
  ensure(leaf.defined(), "an operator finds the tensor that it waited for");
  return leaf;
}

/// A tensor as its operator makes it. Sources are made here, when they are first read; so are empty slices of what the
/// group before makes, since no message has them.
at::Tensor OperatorPasses::Impl::value_of(const Place& place, std::size_t tensor)
{
  at::Tensor value = values_.find(place.key(tensor, false), place.stream);
  if (value.defined()) return value;
  if (is_source(plan_.graph.operators[plan_.graph.tensors[tensor].producer].kind)) {
    value = value_of_source(place, tensor);
    values_.put(place.key(tensor, false), value, place.stream);
  } else if (const auto size = own_block(tensor, forms_[tensor]).size; c10::multiply_integers(size) == 0) {
    value = zeros(size);
  }
  return value;
}

at::Tensor OperatorPasses::Impl::value_of_source(const Place& place, std::size_t tensor) const
{
  const auto& operators = plan_.graph.operators;
  const std::size_t producer = plan_.graph.tensors[tensor].producer;
  if (operators[producer].kind != OperatorKind::Data) {
    return in_dtype(
        compute(plan_.graph, operators[producer], {}, own_block(tensor, forms_[tensor]), settings_of(place)).at(0));
  }
  const auto number = std::count_if(operators.begin(), operators.begin() + static_cast<std::ptrdiff_t>(producer),
                                    [](const auto& node) { return node.kind == OperatorKind::Data; });
  const at::Tensor all = options_.data(place.step, place.microbatch, static_cast<std::size_t>(number));
  at::Tensor own = all.narrow(0, static_cast<std::int64_t>(first_sample_), static_cast<std::int64_t>(samples_));
  const Form form = forms_[tensor];
  if (form.kind == Form::Kind::Gather) own = own_slice(own, tensor, form);
  // A copy, so that the others' samples need no memory.
  return in_dtype(own.numel() == all.numel() ? all : own.clone(at::MemoryFormat::Contiguous));
}

/// A reform without communication, which autograd records.
at::Tensor OperatorPasses::Impl::reformed_freely(const at::Tensor& value, const PlacedReform& reform) const
{
  switch (reform.forward) {
    case ReformKind::Replicate:
    case ReformKind::Slice:
      return reform.to.kind == Form::Kind::Gather ? own_slice(value, reform.tensor, reform.to) : value;
    case ReformKind::Select:
      return own_.position == 0 ? value : at::zeros_like(value);
    case ReformKind::Pad: {
      const std::size_t dimension = reform.from.dimension;
      const TensorBlock block = own_block(reform.tensor, reform.from);
      const TensorBlock whole = own_block(reform.tensor, spmd::full);
      const auto zeros = [&](std::int64_t size) {
        auto shape = whole.size;
        shape[dimension] = size;
        return at::zeros(shape, value.options().requires_grad(false));
      };
      const std::int64_t after = whole.size[dimension] - block.begin[dimension] - block.size[dimension];
      return at::cat({zeros(block.begin[dimension]), value, zeros(after)}, static_cast<std::int64_t>(dimension));
    }
    default:
      ensure(false, "a reform by a collective is not free");
      return {};
  }
}

void OperatorPasses::Impl::backward(std::uint64_t step, std::size_t part, std::uint64_t microbatch, double loss_scale,
                                    Stream& stream)
{
  const Place place{step, microbatch, stream};
  auto found = passes_.extract({part, microbatch});
  ensure(!found.empty(), "a backward pass comes after its forward pass");
  Pass& pass = found.mapped();
  Tensors roots;
  Tensors gradients;
  for (auto& [tensor, output] : pass.outputs) {
    const at::Tensor gradient = take_gradient(place, tensor);
    if (!gradient.defined() || !output.requires_grad()) continue;
    roots.push_back(std::move(output));
    gradients.push_back(gradient);
  }
  if (pass.loss.defined() && pass.loss.requires_grad()) {
    roots.push_back(pass.loss);
    gradients.push_back(at::full_like(pass.loss, loss_scale / static_cast<double>(options_.microbatches)));
  }
  if (!roots.empty()) torch::autograd::backward(roots, gradients);
  for (const auto& [from, leaf] : pass.leaves) {
    const auto& [tensor, is_reformed] = from;
    if (plan_.graph.is_parameter(tensor) || !leaf.grad().defined()) continue;
    add_gradient(place.key(tensor, is_reformed), leaf.grad(), stream);
  }
  for (std::size_t i = plan_.division.parts[part]; i < plan_.division.end_of(part); ++i) {
    for (const std::size_t tensor : plan_.graph.operators[i].outputs) values_.erase(place.key(tensor, false));
  }
  if (part == group_.first_part) {
    for (const std::size_t tensor : from_before_) values_.erase(place.key(tensor, false));
  }
  for (const auto& reform : plan_.reforms) {
    if (reform.part == part && !reform.is_parameter) values_.erase(place.key(reform.tensor, true));
  }
}

/// The gradient of a tensor as its operator makes it, of all its readers in this group and the next; undefined if none
/// has left any.
at::Tensor OperatorPasses::Impl::take_gradient(const Place& place, std::size_t tensor)
{
  const at::NoGradGuard no_graph;
  const at::Tensor own = gradients_.take(place.key(tensor, false), place.stream);
  const at::Tensor returned = returned_gradients_.take(place.key(tensor, false), place.stream);
  if (!own.defined()) return returned;
  return returned.defined() ? own + returned : own;
}

Message OperatorPasses::Impl::leaving(std::size_t reader, std::uint64_t step, const Instruction& send, Stream& stream)
{
  const at::NoGradGuard no_graph;
  const Place place{step, send.microbatch, stream};
  if (send.payload != Payload::Gradient) {
    const auto value = [&](std::size_t tensor) { return values_.find(place.key(tensor, false), stream); };
    return leaving_.to(reader, step, send.microbatch, value, stream);
  }
  const auto gradient = [&](std::size_t tensor) {
    const at::Tensor found = gradients_.take(place.key(tensor, false), stream);
    return found.defined() ? found : zeros(own_block(tensor, forms_[tensor]).size);
  };
  return leaving_gradients_.to(reader, step, send.microbatch, gradient, stream);
}

void OperatorPasses::Impl::add_gradient(const TensorKey& key, const at::Tensor& gradient, Stream& stream)
{
  const at::NoGradGuard no_graph;
  const at::Tensor before = gradients_.find(key, stream);
  gradients_.put(key, before.defined() ? before + gradient : gradient, stream);
}

void OperatorPasses::Impl::reform(std::uint64_t step, const Instruction& instruction, const Collectives& collectives,
                                  Stream& stream)
{
  const at::NoGradGuard no_graph;
  const PlacedReform& reform = plan_.reforms.at(instruction.place);
  const std::size_t tensor = reform.tensor;
  const Place place{step, instruction.microbatch, stream};
  const Meeting meeting{instruction, collectives, stream};
  const auto forward = [&](const at::Tensor& value) {
    return reformed(reform.forward, tensor, value, reform.from, reform.to, meeting);
  };
  switch (instruction.payload) {
    case Payload::Activation:
      return values_.put(place.key(tensor, true), forward(value_of(place, tensor)), stream);
    case Payload::Parameter:
      return values_.put({step, 0, tensor, true}, forward(parameters_[tensor].detach()).requires_grad_(), stream);
    case Payload::ParameterGradient:
      if (reform.from.kind == Form::Kind::Replicate) return add_up_bucket(instruction.place, meeting);
      return take_back_parameter(step, reform, meeting);
    default:
      break;
  }
  at::Tensor gradient = gradients_.take(place.key(tensor, true), stream);
  const Form form = gradient_form(reform.to);
  if (!gradient.defined()) gradient = zeros(own_block(tensor, form).size);
  const at::Tensor taken = reformed(reform.backward, tensor, gradient, form, gradient_form(reform.from), meeting);
  add_gradient(place.key(tensor, false), taken, stream);
}

/// Adds up the gradients of a bucket of replicated parameters. `last`: the reform that ends it.
void OperatorPasses::Impl::add_up_bucket(std::size_t last, const Meeting& meeting)
{
  const auto bucket = std::find_if(plan_.buckets.begin(), plan_.buckets.end(),
                                   [&](const std::vector<std::size_t>& reforms) { return reforms.back() == last; });
  ensure(bucket != plan_.buckets.end(), "a sum of gradients ends a bucket");
  std::vector<std::size_t> parameters;
  for (const std::size_t reform : *bucket) parameters.push_back(plan_.reforms[reform].tensor);
  add_up(parameters, meeting);
}

void OperatorPasses::Impl::add_up_replicas(const Instruction& instruction, const Collectives& collectives,
                                           Stream& stream)
{
  const at::NoGradGuard no_graph;
  std::vector<std::size_t> parameters;
  for (std::size_t i = plan_.division.parts[instruction.stage]; i < plan_.division.end_of(instruction.stage); ++i) {
    for (const std::size_t tensor : plan_.graph.operators[i].outputs) {
      if (parameters_[tensor].defined() && plan_.graph.has_gradient(tensor)) parameters.push_back(tensor);
    }
  }
  add_up(parameters, {instruction, collectives, stream});
}

/// Replaces the gradients of parameters, tensors of the graph, by their sums over the ranks of a collective.
void OperatorPasses::Impl::add_up(const std::vector<std::size_t>& parameters, const Meeting& meeting)
{
  Tensors sums;
  for (const std::size_t tensor : parameters) {
    const at::Tensor& addend = parameters_[tensor].grad();
    sums.push_back(addend.defined() ? addend.clone(at::MemoryFormat::Contiguous) : at::zeros_like(parameters_[tensor]));
  }
  meeting.stream.record().wait();
  meeting.collectives.sum(meeting.instruction, sums);
  for (std::size_t i = 0; i < sums.size(); ++i) parameters_[parameters[i]].mutable_grad() = sums[i];
}

/// The gradient of the slices of a parameter from that of the gathered one.
void OperatorPasses::Impl::take_back_parameter(std::uint64_t step, const PlacedReform& reform, const Meeting& meeting)
{
  const at::Tensor& parameter = parameters_[reform.tensor];
  at::Tensor& gradient = parameter.mutable_grad();
  const at::Tensor gathered = values_.take({step, 0, reform.tensor, true}, meeting.stream);
  const at::Tensor whole = gathered.grad().defined() ? gathered.grad() : at::zeros_like(gathered);
  const at::Tensor taken =
      reformed(reform.backward, reform.tensor, whole, gradient_form(reform.to), gradient_form(reform.from), meeting);
  gradient = gradient.defined() ? gradient + taken : taken;
}

/// What this rank has of a tensor after a collective; a tensor of its own.
at::Tensor OperatorPasses::Impl::reformed(ReformKind kind, std::size_t tensor, at::Tensor value, Form from, Form to,
                                          const Meeting& meeting) const
{
  if (kind == ReformKind::AllReduce) {
    value = value.clone(at::MemoryFormat::Contiguous);
    Instruction sum = meeting.instruction;
    sum.opcode = Opcode::AllReduce;
    meeting.stream.record().wait();
    meeting.collectives.sum(sum, {value});
    return value;
  }
  const bool makes_slices = to.kind == Form::Kind::Gather;
  const bool has_slices = from.kind == Form::Kind::Gather;
  Tensors outgoing;
  Tensors arrived;
  for (std::size_t other = 0; other < blocks_.devices(); ++other) {
    at::Tensor leaves = value;
    if (makes_slices) {
      const TensorBlock theirs = blocks_.of(tensor, to, other);
      leaves = value.narrow(to.dimension, theirs.begin[to.dimension], theirs.size[to.dimension]);
    }
    outgoing.push_back(leaves.contiguous());
    TensorBlock arrives = own_block(tensor, to);
    if (has_slices) arrives.size[from.dimension] = blocks_.of(tensor, from, other).size[from.dimension];
    const bool is_own = other == own_.position;
    arrived.push_back(is_own ? outgoing.back() : at::empty(arrives.size, value.options()));
  }
  meeting.stream.record().wait();
  meeting.collectives.exchange(meeting.instruction, outgoing, arrived);
  if (has_slices) return at::cat(arrived, from.dimension);
  // In the order of the ranks, so that the bits do not depend on who comes first.
  at::Tensor sum = arrived.front().clone();
  for (std::size_t other = 1; other < arrived.size(); ++other) sum.add_(arrived[other]);
  return sum;
}

OperatorPasses::OperatorPasses(const OperatorPlan& plan, const Workload& workload, Tensors parameters,
                               const OperatorOptions& options)
    : impl_(std::make_unique<Impl>(plan, workload, std::move(parameters), options))
{
}
OperatorPasses::~OperatorPasses() = default;

void OperatorPasses::forward(std::uint64_t step, const Instruction& pass, Stream& stream)
{
  impl_->forward(step, pass.stage, pass.microbatch, stream);
}
void OperatorPasses::backward(std::uint64_t step, const Instruction& pass, double loss_scale, Stream& stream)
{
  impl_->backward(step, pass.stage, pass.microbatch, loss_scale, stream);
}
void OperatorPasses::reform(std::uint64_t step, const Instruction& instruction, const Collectives& collectives,
                            Stream& stream)
{
  impl_->reform(step, instruction, collectives, stream);
}
void OperatorPasses::add_up_replicas(const Instruction& instruction, const Collectives& collectives, Stream& stream)
{
  impl_->add_up_replicas(instruction, collectives, stream);
}
Message OperatorPasses::leaving(std::size_t reader, std::uint64_t step, const Instruction& send, Stream& stream)
{
  return impl_->leaving(reader, step, send, stream);
}
void OperatorPasses::arrived(std::size_t sender, std::uint64_t step, const Instruction& receive, const Message& message,
                             Stream& stream)
{
  impl_->arrived(sender, step, receive, message, stream);
}
at::Tensor OperatorPasses::take_loss()
{
  return impl_->take_loss();
}

}  // namespace isobar::exec
