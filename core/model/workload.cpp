#include "core/model/workload.hpp"

#include "core/errors.hpp"
#include "core/model/models.hpp"
#include "core/model/routing.hpp"
#include "core/names.hpp"
#include "core/text/json_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <variant>

namespace isobar {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Split& split)
{
  Json products = Json::array();
  for (const auto& [inputs, outputs] : split.products) products.push_back({inputs, outputs});
  Json object = {{"name", split.name},
                 {"units", split.units},
                 {"parameters", split.parameters},
                 {"activations_bytes", split.activations.value}};
  if (split.gathered) object["gathered_bytes"] = split.gathered->value;
  object["products"] = std::move(products);
  object["norm_sums"] = split.norm_sums;
  return object;
}

constexpr NameTable<Optimizer, 4> optimizers = {{{Optimizer::Sgd, "sgd"},
                                                 {Optimizer::Momentum, "momentum"},
                                                 {Optimizer::Adam, "adam"},
                                                 {Optimizer::AdamW, "adamw"}}};
constexpr NameTable<MemoryModel, 2> memory_models = {{{MemoryModel::Training, "training"}, {MemoryModel::Sky, "sky"}}};
constexpr NameTable<ComputeModel, 2> compute_models = {
    {{ComputeModel::Rate, "rate"}, {ComputeModel::Operators, "operators"}}};

}  // namespace

std::string_view name_of(Optimizer optimizer)
{
  return name_in(optimizers, optimizer);
}
std::string_view name_of(MemoryModel model)
{
  return name_in(memory_models, model);
}
std::optional<Optimizer> optimizer_from_name(std::string_view name)
{
  return value_in(optimizers, name);
}
std::optional<MemoryModel> memory_model_from_name(std::string_view name)
{
  return value_in(memory_models, name);
}
std::vector<std::string> optimizer_names()
{
  return names_in(optimizers);
}
std::vector<std::string> memory_model_names()
{
  return names_in(memory_models);
}

std::string_view name_of(ComputeModel model)
{
  return name_in(compute_models, model);
}

std::optional<ComputeModel> compute_model_from_name(std::string_view name)
{
  return value_in(compute_models, name);
}

std::vector<std::string> compute_model_names()
{
  return names_in(compute_models);
}

const Framework& framework_of(const Workload& workload)
{
  if (workload.changed_framework) return *workload.changed_framework;
  return *framework_named(workload.framework).framework;
}

double samples_of_microbatch(const Workload& workload)
{
  return static_cast<double>(workload.micro_batch) / static_cast<double>(workload.context.degree);
}

bool needs_gradient_sync(const Workload& workload)
{
  return workload.training.clip_norm.has_value() || workload.dtype == DType::Float16;
}

Workload with_recomputation(const Workload& workload, const std::vector<std::size_t>& layers)
{
  ensure(workload.memory_model == MemoryModel::Training && workload.recompute.empty(),
         "layers recompute only once, and only with memory_model training");
  Workload result = workload;
  result.recompute = layers;
  // Stages that live on their devices count measured workspaces only, and what is recomputed.
  const bool is_measured = workload.workspace > Bytes(0);
  for (const std::size_t recomputed : layers) {
    Layer& layer = result.layers.at(recomputed);
    Bytes read = layer.inputs.empty() ? workload.input : Bytes(0);
    for (const std::size_t input : layer.inputs) read += workload.layers[input].output;
    const Bytes kept = std::min(read, layer.activations);
    const Bytes freed = layer.activations - kept;
    layer.workspace += freed;
    result.workspace = std::max(result.workspace, is_measured ? layer.workspace : freed);
    layer.activations = kept;
    if (layer.split) layer.split->activations = Bytes(0);  // each device keeps the whole input
    layer.backward += layer.forward;
    for (auto& [type, times] : result.times) times[recomputed].backward += times[recomputed].forward;
  }
  if (result.prices != nullptr) result.prices->apply(result);
  return result;
}

std::vector<std::size_t> inner_layers(const Workload& workload)
{
  std::vector<std::size_t> layers;
  for (std::size_t layer = 1; layer + 1 < workload.layers.size(); ++layer) layers.push_back(layer);
  return layers;
}

std::vector<std::size_t> all_recomputed(const Workload& workload)
{
  if (workload.compute == ComputeModel::Operators) return inner_layers(workload);
  std::vector<std::size_t> layers(workload.layers.size());
  std::iota(layers.begin(), layers.end(), std::size_t{0});
  return layers;
}

namespace {

struct BuildLayers {
  Workload& workload;

  void operator()(const std::monostate&) const { ensure(false, "listed layers have no other micro-batch"); }
  void operator()(const BertSizes& sizes) const { build_bert(sizes, workload); }
  void operator()(const GptSizes& sizes) const { build_gpt(sizes, workload); }
  void operator()(const LlamaSizes& sizes) const { build_llama(sizes, workload); }
  void operator()(const DecoderSizes& sizes) const { build_decoder(sizes, workload); }
  void operator()(const ResnetSizes& sizes) const { build_resnet(sizes, workload); }
  void operator()(const spmd::MoeSizes& sizes) const { build_moe(sizes, workload); }
};

/// Leaves a layer with one of several equal parts of its work and data.
void take_part(Layer& layer, double parts)
{
  for (Flops* work : {&layer.forward, &layer.backward, &layer.backward_weight}) *work = *work / parts;
  for (Bytes* size : {&layer.activations, &layer.output, &layer.gradient, &layer.workspace}) *size = *size / parts;
  if (layer.experts) {
    Experts& experts = *layer.experts;
    for (Flops* work : {&experts.forward, &experts.backward, &experts.backward_weight}) *work = *work / parts;
    for (Bytes* size : {&experts.activations, &experts.workspace, &experts.dispatched}) *size = *size / parts;
  }
  if (!layer.split) return;
  for (Bytes* size : {&layer.split->activations, &layer.split->workspace}) *size = *size / parts;
  if (layer.split->gathered) *layer.split->gathered = *layer.split->gathered / parts;
}

}  // namespace

Workload with_micro_batch(const Workload& workload, std::uint64_t micro_batch)
{
  Workload result = workload;
  result.micro_batch = micro_batch;
  result.layers.clear();
  result.recompute.clear();
  result.workspace = Bytes(0);
  std::visit(BuildLayers{result}, workload.model);
  if (workload.context.divides()) {
    const auto parts = static_cast<double>(workload.context.degree);
    for (auto& layer : result.layers) take_part(layer, parts);
    result.input = result.input / parts;
    result.workspace = result.workspace / parts;
  }
  divide_experts(result);
  if (workload.memory_model != MemoryModel::Sky) {
    for (auto& layer : result.layers) layer.sky_memory = Bytes(0);
  }
  if (!workload.recompute.empty()) return with_recomputation(result, workload.recompute);
  if (result.prices != nullptr) result.prices->apply(result);
  return result;
}

std::optional<spmd::Routing> routing_of(const Workload& workload)
{
  const auto* sizes = std::get_if<spmd::MoeSizes>(&workload.model);
  return sizes == nullptr || sizes->experts == 0 ? std::nullopt : std::optional(sizes->routing);
}

std::optional<std::string> fault_of_routing(const Workload& workload, const spmd::Routing& routing,
                                            std::uint64_t micro_batch)
{
  if (!routing_of(workload)) return fmt::format("workload {} has no experts; leave it out", workload.name);
  if (micro_batch % routing.capacity_samples != 0) {
    return fmt::format("capacity_samples: {} do not divide the {} of a micro-batch", routing.capacity_samples,
                       micro_batch);
  }
  if (routing.by_index && std::get<spmd::MoeSizes>(workload.model).parity) {
    return "by_index: the published graph of parity has slots";
  }
  return std::nullopt;
}

std::string text_of(const spmd::Routing& routing, const Workload& workload)
{
  if (routing.by_index) return "all tokens, by index";
  auto sizes = std::get<spmd::MoeSizes>(workload.model);
  sizes.routing = routing;
  const std::uint64_t slots = spmd::capacity_of(sizes);
  return fmt::format("{} {} for {}", slots, slots == 1 ? "slot" : "slots",
                     routing.capacity_samples == 1 ? "a sample" : fmt::format("{} samples", routing.capacity_samples));
}

Workload with_routing(const Workload& workload, const spmd::Routing& routing, std::uint64_t micro_batch)
{
  ensure(!fault_of_routing(workload, routing, micro_batch), "a routing that the workload can have");
  Workload result = workload;
  std::get<spmd::MoeSizes>(result.model).routing = routing;
  return with_micro_batch(result, micro_batch);
}

ParameterBytes parameter_bytes(DType dtype, Optimizer optimizer)
{
  const double master_copy = dtype == DType::Float32 ? 0 : 4;
  const double state = optimizer == Optimizer::Sgd ? 0 : optimizer == Optimizer::Momentum ? 4 : 8;
  return {size_of(dtype), size_of(dtype), master_copy + state};
}

ParameterBytes parameter_bytes(const Workload& workload)
{
  return workload.state ? *workload.state : parameter_bytes(workload.dtype, workload.optimizer);
}

double bytes_per_parameter(const Workload& workload)
{
  return parameter_bytes(workload).all();
}

Flops default_backward_weight(const Layer& layer)
{
  return layer.parameters == 0 ? Flops(0) : 0.5 * layer.backward;
}

Flops update_work(const Workload& workload, const Layer& layer)
{
  if (layer.update) return *layer.update;
  return Flops(static_cast<double>(layer.parameters) * update_flops_per_parameter(workload.optimizer));
}

const std::vector<LayerTimes>* known_times(const Workload& workload, const std::string& type)
{
  const auto found = workload.times.find(type);
  return found == workload.times.end() ? nullptr : &found->second;
}

LayerTimes& LayerTimes::operator+=(const LayerTimes& more)
{
  forward += more.forward;
  backward += more.backward;
  backward_weight += more.backward_weight;
  update += more.update;
  return *this;
}

void set_times(Workload& workload, const std::string& type, std::vector<LayerTimes> own,
               const std::vector<LayerTimes>& usual)
{
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto raise = [](Seconds& time, Seconds least) { time = std::max(time, least); };
    raise(own[i].forward, usual[i].forward / most_gain_of_type);
    raise(own[i].backward_weight, usual[i].backward_weight / most_gain_of_type);
    const Seconds rest = usual[i].backward - usual[i].backward_weight;
    raise(own[i].backward, own[i].backward_weight + rest / most_gain_of_type);
    raise(own[i].update, usual[i].update / most_gain_of_type);
  }
  workload.times[type] = std::move(own);
}

double update_flops_per_parameter(Optimizer optimizer)
{
  switch (optimizer) {
    case Optimizer::Sgd:
      return 2;  // w -= lr g
    case Optimizer::Momentum:
      return 4;  // v = mu v + g; w -= lr v
    case Optimizer::Adam:
      return 12;  // two moments (2 x 3), two corrections, root, sum, quotient and step (6)
    case Optimizer::AdamW:
      return 14;  // as adam, and w -= lr decay w
  }
  return 0;
}

std::string workload_to_json(const Workload& workload)
{
  Json layers = Json::array();
  for (const auto& layer : workload.layers) {
    layers.push_back({{"name", layer.name},
                      {"forward_flops", layer.forward.value},
                      {"backward_flops", layer.backward.value},
                      {"backward_weight_flops", layer.backward_weight.value},
                      {"parameters", layer.parameters},
                      {"activations_bytes", layer.activations.value},
                      {"output_bytes", layer.output.value},
                      {"gradient_bytes", layer.gradient.value},
                      {"sky_memory_bytes", layer.sky_memory.value},
                      {"inputs", layer.inputs}});
    if (layer.split) layers.back()["split"] = to_json(*layer.split);
    if (layer.tied_to) {
      layers.back()["tied_to"] = *layer.tied_to;
      layers.back()["tied_parameters"] = layer.tied_parameters;
    }
  }
  Json times;
  for (const auto& [type, own] : workload.times) {
    for (const auto& layer : own) {
      times[type].push_back({{"forward_s", layer.forward.value},
                             {"backward_s", layer.backward.value},
                             {"backward_weight_s", layer.backward_weight.value},
                             {"update_s", layer.update.value}});
    }
  }
  Json document = {{"schema", "isobar-workload/1"},
                   {"name", workload.name},
                   {"micro_batch", workload.micro_batch},
                   {"sequence", workload.sequence},
                   {"dtype", name_of(workload.dtype)},
                   {"optimizer", name_of(workload.optimizer)},
                   {"memory_model", name_of(workload.memory_model)},
                   {"input_bytes", workload.input.value},
                   {"recompute_buffer_bytes", workload.workspace.value},
                   {"layers", std::move(layers)}};
  if (!times.empty()) document["times"] = std::move(times);
  return json_line(document);
}

}  // namespace isobar
