#include "core/compute/sailor_profile.hpp"

#include "core/base/files.hpp"
#include "core/compute/transformer.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <optional>

namespace isobar::compute {

namespace {

constexpr double longest_measured_s = 1e6;
constexpr std::uint64_t most_layers = 100'000;
constexpr std::uint64_t largest_count = 1'000'000;

/// Calls `read` with each key of a mapping, as a number from `least`, and its member.
template <typename Read>
void for_each_number(MappingReader& mapping, const std::string& what, std::uint64_t least, Read read)
{
  const auto keys = mapping.keys();
  if (keys.empty()) mapping.add_fault("", fmt::format("no {}; a profile of Sailor has at least one", what));
  for (const auto& key : keys) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    const auto* member = mapping.optional(key);
    if (error != std::errc() || end != key.data() + key.size() || number < least || number > largest_count) {
      mapping.add_fault(key, fmt::format("is no {}; write a whole number from {}", what, least));
      continue;
    }
    read(number, *member);
  }
}

/// Members "0", "1", … in order.
template <typename Item, typename Read>
std::vector<Item> read_layers(const DocumentNode& node, const std::string& path, FaultList& faults, Read read)
{
  MappingReader mapping(node, path, faults);
  std::map<std::uint64_t, Item> by_number;
  for_each_number(mapping, "layer", 0, [&](std::uint64_t number, const DocumentNode& member) {
    by_number[number] = read(member, mapping.path_of(fmt::format("{}", number)));
  });
  std::vector<Item> items;
  for (const auto& [number, item] : by_number) {
    if (number != items.size() || number > most_layers) {
      mapping.add_fault(fmt::format("{}", items.size()), "missing; number the layers from 0 without gaps");
      break;
    }
    items.push_back(item);
  }
  constexpr std::size_t fewest = 3;
  if (!by_number.empty() && by_number.size() < fewest) {
    mapping.add_fault("", fmt::format("{} layers; write an embedding, blocks and a head", by_number.size()));
  }
  return items;
}

struct Triple {
  double forward = 0;
  double backward = 0;
  double update = 0;
};

Triple read_triple(const DocumentNode& node, const std::string& path, FaultList& faults)
{
  constexpr std::size_t numbers = 3;
  constexpr auto wanted = "write [forward_s, backward_s, update_s]";
  if (node.kind != DocumentNode::Kind::Sequence || node.items.size() != numbers) {
    faults.add(node.line, path, fmt::format("is no list of three numbers; {}", wanted));
    return {};
  }
  double values[numbers] = {};
  for (std::size_t i = 0; i < numbers; ++i) {
    const auto& text = node.items[i].scalar;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), values[i]);
    const bool is_number = error == std::errc() && end == text.data() + text.size() && !node.items[i].is_text;
    if (!is_number || !(values[i] >= 0 && values[i] <= longest_measured_s)) {
      faults.add(node.items[i].line, fmt::format("{}[{}]", path, i),
                 fmt::format("{} is no time from 0 to {:.0e} s; {}", in_quotes(text), longest_measured_s, wanted));
      values[i] = 0;
    }
  }
  return {values[0], values[1], values[2]};
}

SailorRun run_of(const std::vector<Triple>& triples)
{
  SailorRun run;
  constexpr std::size_t second_block = 2;
  const bool has_two_blocks = triples.size() > second_block + 1;
  for (std::size_t i = 0; i < triples.size(); ++i) {
    const bool is_block = i > 0 && i + 1 < triples.size();
    const auto& triple = triples[is_block && has_two_blocks ? second_block : i];
    run.layers.push_back({Seconds(triple.forward), Seconds(triple.backward)});
    run.update = std::max(run.update, Seconds(triple.update));
  }
  return run;
}

template <typename Map>
std::string keys_of(const Map& map)
{
  std::vector<std::uint64_t> keys;
  for (const auto& entry : map) keys.push_back(entry.first);
  return fmt::format("{}", fmt::join(keys, ", "));
}

Seconds both(const SailorTimes& times)
{
  return times.forward + times.backward;
}

/// No pass takes longer than with more samples.
SailorRun monotone(const SailorProfile& profile, std::uint64_t micro_batch, std::uint64_t shards)
{
  SailorRun result = profile.run(micro_batch, shards);
  for (auto larger = profile.runs.upper_bound(micro_batch); larger != profile.runs.end(); ++larger) {
    const auto run = larger->second.find(shards);
    if (run == larger->second.end() || run->second.layers.size() != result.layers.size()) continue;
    for (std::size_t i = 0; i < result.layers.size(); ++i) {
      result.layers[i].forward = std::min(result.layers[i].forward, run->second.layers[i].forward);
      result.layers[i].backward = std::min(result.layers[i].backward, run->second.layers[i].backward);
    }
  }
  return result;
}

}  // namespace

const SailorRun& SailorProfile::run(std::uint64_t micro_batch, std::uint64_t shards) const
{
  const auto of_batch = runs.find(micro_batch);
  if (of_batch == runs.end()) {
    throw InputError(name, fmt::format("no times for micro-batch {}; it has {}", micro_batch, keys_of(runs)));
  }
  const auto found = of_batch->second.find(shards);
  if (found == of_batch->second.end()) {
    throw InputError(name, fmt::format("no times for micro-batch {} and tensor-parallel degree {}; it has degrees {}",
                                       micro_batch, shards, keys_of(of_batch->second)));
  }
  return found->second;
}

SailorProfile sailor_profile_from_json(const std::string& text, const std::string& name)
{
  const DocumentNode root = parse_json(text, name);
  FaultList faults(name);
  SailorProfile profile;
  profile.name = name;
  MappingReader batches(root, "", faults);
  for_each_number(batches, "micro-batch", 1, [&](std::uint64_t batch, const DocumentNode& of_batch) {
    MappingReader degrees(of_batch, fmt::format("{}.", batch), faults);
    for_each_number(degrees, "tensor-parallel degree", 1, [&](std::uint64_t degree, const DocumentNode& of_degree) {
      const auto triples = read_layers<Triple>(
          of_degree, fmt::format("{}.{}.", batch, degree), faults,
          [&](const DocumentNode& node, const std::string& path) { return read_triple(node, path, faults); });
      profile.runs[batch][degree] = run_of(triples);
    });
  });
  faults.throw_if_any();
  return profile;
}

SailorRun in_training(const SailorProfile& profile, std::uint64_t micro_batch, std::uint64_t shards,
                      const Framework& framework)
{
  SailorRun run = monotone(profile, micro_batch, shards);
  const auto twice = profile.runs.find(2 * micro_batch);
  if (twice == profile.runs.end() || !twice->second.contains(shards)) return run;
  const Seconds at_twice = both(monotone(profile, 2 * micro_batch, shards).block());
  const Seconds measured = both(run.block());
  constexpr double growth = 4.0 / 3;
  if (!(at_twice < measured * growth)) return run;
  Seconds host = framework.host_forward + framework.host_backward;
  if (shards > 1) host += framework.host_shards * 2;
  const double factor = std::min(1.0, std::max(host, at_twice / 2) / measured);
  for (std::size_t i = 1; i + 1 < run.layers.size(); ++i) {
    run.layers[i].forward *= factor;
    run.layers[i].backward *= factor;
  }
  return run;
}

const std::vector<SailorSize>& SailorSizes::of_shards(std::uint64_t shards) const
{
  const auto found = layers.find(shards);
  if (found == layers.end()) {
    throw InputError(name,
                     fmt::format("no sizes for tensor-parallel degree {}; it has degrees {}", shards, keys_of(layers)));
  }
  return found->second;
}

SailorSizes sailor_sizes_from_json(const std::string& text, const std::string& name)
{
  const DocumentNode root = parse_json(text, name);
  FaultList faults(name);
  SailorSizes sizes;
  sizes.name = name;
  MappingReader degrees(root, "", faults);
  for_each_number(degrees, "tensor-parallel degree", 1, [&](std::uint64_t degree, const DocumentNode& of_degree) {
    sizes.layers[degree] = read_layers<SailorSize>(
        of_degree, fmt::format("{}.", degree), faults, [&](const DocumentNode& node, const std::string& path) {
          MappingReader layer(node, path + ".", faults);
          SailorSize size;
          size.parameters = layer.required_number("params_floats");
          size.activations = Bytes(layer.required_number("act_mem_bytes"));
          for (const auto* key : {"act_output_floats", "act_input_floats", "act_mem_floats", "params_bytes",
                                  "act_output_bytes", "act_input_bytes"}) {
            layer.optional_number(key);
          }
          layer.refuse_unknown();
          return size;
        });
  });
  faults.throw_if_any();
  return sizes;
}

SailorSizes read_sailor_sizes(const std::filesystem::path& file)
{
  return sailor_sizes_from_json(read_file(file), file.string());
}

namespace {

/// A measured layer that stands for one of a workload: which one, and the part of it.
struct MeasuredPart {
  std::size_t layer = 0;
  double part = 1;
};

/// @throws InputError unless `measured` layers, of which the first and the last are no blocks, are the workload's.
MeasuredPart measured_part(const Workload& workload, std::size_t layer, std::size_t measured, const std::string& name)
{
  const std::size_t last = workload.layers.size() - 1;
  const bool is_block = layer > 0 && layer < last;
  const auto block = block_of(workload, is_block ? layer : std::min<std::size_t>(1, last));
  const std::size_t parts = block.last - block.first + 1;
  const std::size_t layers = last == 0 ? 1 : (last - 1) / parts + 2;
  if (layers != measured) {
    throw InputError(name, fmt::format("has {} layers, and the workload has {}", measured, layers));
  }
  if (layer == 0) return {};
  return is_block ? MeasuredPart{(layer - 1) / parts + 1, 1 / static_cast<double>(parts)} : MeasuredPart{measured - 1};
}

}  // namespace

SailorTimes times_of_layer(const SailorProfile& profile, const SailorRun& run, const Workload& workload,
                           std::size_t layer)
{
  const auto [measured, part] = measured_part(workload, layer, run.layers.size(), profile.name);
  return {part * run.layers[measured].forward, part * run.layers[measured].backward};
}

SailorSize SailorSizes::of_layer(const Workload& workload, std::size_t layer, std::uint64_t shards) const
{
  const auto& sizes = of_shards(shards);
  const auto [measured, part] = measured_part(workload, layer, sizes.size(), name);
  return {part * sizes[measured].parameters, part * sizes[measured].activations};
}

}  // namespace isobar::compute
