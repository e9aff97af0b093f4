#pragma once

#include "core/errors.hpp"
#include "core/huggingface/config.hpp"
#include "core/model/layer_graph.hpp"
#include "core/model/workload.hpp"
#include "core/text/document.hpp"

#include <cmath>
#include <string>
#include <string_view>

/// Fuzz targets and the properties that they check. The tests replay every input that ever crashed one.
namespace isobar::fuzz {

/// Checks that each line of a fault names the file.
inline void check_message(const InputError& fault, std::string_view file = "input")
{
  std::string_view rest = fault.what();
  while (!rest.empty()) {
    const auto line = rest.substr(0, rest.find('\n'));
    ensure(line.starts_with(file), "each line of a message begins with the file");
    for (const char character : line) {
      ensure(static_cast<unsigned char>(character) >= 0x20, "a message holds no control characters");
    }
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
}

inline void document(const std::string& text)
{
  for (const auto parse : {parse_yaml, parse_json}) {
    try {
      parse(text, "input");
    } catch (const InputError& fault) {
      check_message(fault);
    }
  }
}

inline void check(const Workload& workload)
{
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const auto& layer = workload.layers[i];
    for (const double value : {layer.forward.value, layer.backward.value, layer.activations.value, layer.output.value,
                               layer.gradient.value, layer.sky_memory.value}) {
      ensure(std::isfinite(value) && value >= 0, "every quantity is finite and not negative");
    }
    for (const std::size_t input : layer.inputs) ensure(input < i, "a layer reads only layers before it");
  }
  // The rest takes time in proportion to the layers, and graphs of thousands show the same as graphs of millions.
  if (workload.layers.size() > 5'000) return;
  const auto view = chain_view(workload);
  ensure(is_chain(view.workload), "the chain view is a chain");
  ensure(view.first_layer.back() == workload.layers.size(), "the chain view has every layer");
  ensure(boundaries_of(workload).output.back() == Bytes(0), "nothing crosses the end");
  workload_to_json(workload);
}

/// Checks that every accepted configuration makes a workload.
inline void huggingface_config(const std::string& text)
{
  std::string imported;
  try {
    imported = workload_from_huggingface(text, "input", {.sequence = 16, .micro_batch = 2, .dtype = {}});
  } catch (const InputError& fault) {
    check_message(fault);
    return;
  }
  const auto workload = workload_from_text(imported, "imported.yaml");
  ensure(!workload.layers.empty(), "a workload has layers");
  try {
    const bool is_decoder = std::holds_alternative<DecoderSizes>(workload.model);
    const auto read = sizes_from_huggingface(text, "input", is_decoder);
    ensure(workload.model.index() == read.sizes.index(), "a model is of one kind");
  } catch (const InputError& fault) {
    check_message(fault);  // the model costs the same but computes something else
  }
}

inline void workload(const std::string& text)
{
  for (const auto* name : {"input.yaml", "input.json"}) {
    try {
      check(workload_from_text(text, name));
    } catch (const InputError& fault) {
      check_message(fault);
    }
  }
}

}  // namespace isobar::fuzz
