// isobar_model_filter WORKLOAD WEIGHTS INPUTS FOLDER: computes the model of a workload, with a Hugging Face model's
// weights, on INPUTS (safetensors: tokens, labels; for bert also mask and segments). Writes outputs and loss to
// FOLDER/outputs.safetensors, and exports the weights as the Hugging Face model FOLDER/exported. For the peer test.

#include "core/model/workload.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/huggingface_export.hpp"
#include "exec/files/huggingface_weights.hpp"
#include "exec/files/weight_files.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/model/loss.hpp"
#include "tests/exec/files/stored_tensors.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

namespace {

at::Tensor read_whole_numbers(const TensorSource& source, const std::string& name)
{
  const auto stored = source.read(name);
  const std::vector<std::int64_t> shape(stored.facts.shape.begin(), stored.facts.shape.end());
  auto tensor = at::empty(shape, at::kLong);
  std::memcpy(tensor.mutable_data_ptr(), stored.data.data(), stored.data.size());
  return tensor;
}

StoredTensor stored_floats(const std::string& name, const at::Tensor& tensor)
{
  const auto values = tensor.detach().contiguous();
  const auto* begin = values.const_data_ptr<float>();
  return tensor_of(name, {values.sizes().begin(), values.sizes().end()}, {begin, begin + values.numel()});
}

void compute(const std::string& workload_file, const std::string& weights_folder, const std::string& inputs_file,
             const std::filesystem::path& folder)
{
  const at::NoGradGuard no_graph;
  const auto workload = read_workload(workload_file);
  const Weights weights(weights_folder);
  check_weights(workload, weights);
  const SafetensorsFile inputs(inputs_file);
  Tensors passed = {read_whole_numbers(inputs, "tokens")};
  for (const auto* name : {"mask", "segments"}) {
    if (inputs.find(name)) passed.push_back(read_whole_numbers(inputs, name));
  }
  StageSnapshot snapshot{.step = 1, .last_layer = workload.layers.size() - 1, .tensors = {}};
  std::vector<std::unique_ptr<LayerModule>> modules;
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    const auto& tied_to = workload.layers[layer].tied_to;
    modules.push_back(make_layer_module(workload, layer, 1, "cpu", {}, tied_to ? modules[*tied_to].get() : nullptr));
    const auto& module = modules.back();
    load_weights(workload, layer, weights, *module);
    passed = module->forward(passed, {});
    for (std::size_t i = 0; i < module->parameters().size(); ++i) {
      snapshot.tensors.push_back(
          stored_floats(checkpoint_name(layer, module->parameter_names()[i]), module->parameters()[i]));
    }
  }
  std::vector outputs = {stored_floats("outputs", passed.at(0))};
  outputs.push_back(stored_floats("loss", loss_of(workload, passed, read_whole_numbers(inputs, "labels")).view(1)));
  write_safetensors(folder / "outputs.safetensors", views_of(outputs), {});
  const CheckpointStore store(folder / "checkpoints");
  store.write(snapshot);
  constexpr std::uint64_t max_shard_bytes = 10'000;
  export_to_huggingface(workload, store.open(1), folder / "exported", max_shard_bytes);
}

}  // namespace
}  // namespace isobar::exec

int main(int argc, char** argv)
{
  if (argc != 5) return 2;
  try {
    isobar::exec::compute(argv[1], argv[2], argv[3], argv[4]);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 1;
  }
}
