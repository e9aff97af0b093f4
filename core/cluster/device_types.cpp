#include "core/cluster/device_types.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>

namespace isobar {

namespace {

/// A row of platforms/data/device_types.csv.
struct Row {
  std::string_view name;
  std::string_view other_names;  ///< with | between them
  struct {                       // 0: the type does not have it
    double float32;              // TFLOP/s
    double tf32;
    double fp16;
    double bf16;
    double fp8;
    double fp4;
    double memory_mib;
    double memory_bandwidth;  // GB/s
    double inside_bandwidth;
  } numbers;
  std::string_view source;
  std::string_view memory_source;
};

constexpr Row rows[] = {
#include "generated/core/cluster/device_types.inc"
};

std::vector<std::string> separated(std::string_view text, char separator)
{
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

DeviceType type_of(const Row& row)
{
  const auto rate = [](double tera) { return FlopsPerSecond(tera * 1e12); };
  const auto known_rate = [&](double tera) { return tera > 0 ? std::optional(rate(tera)) : std::nullopt; };
  DeviceType type;
  type.name = row.name;
  type.other_names = separated(row.other_names, '|');
  type.float32 = rate(row.numbers.float32);
  type.tf32 = known_rate(row.numbers.tf32);
  type.fp16 = rate(row.numbers.fp16);
  type.bf16 = known_rate(row.numbers.bf16);
  type.fp8 = known_rate(row.numbers.fp8);
  type.fp4 = known_rate(row.numbers.fp4);
  type.memory = Bytes(row.numbers.memory_mib * 0x1p20);
  type.memory_bandwidth = BytesPerSecond(row.numbers.memory_bandwidth * 1e9);
  type.inside_bandwidth = BytesPerSecond(row.numbers.inside_bandwidth * 1e9);
  type.source = row.source;
  type.memory_source = row.memory_source;
  return type;
}

bool is_digit(char character)
{
  return std::isdigit(static_cast<unsigned char>(character)) != 0;
}

std::string in_lower_case(std::string_view text)
{
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char character) { return std::tolower(character); });
  return lower;
}

/// The first part with a digit, such as "v100" of "V100-SXM2-16GB", in lower case; "" without one.
std::string model_of(std::string_view name)
{
  for (const auto& word : separated(name, '-')) {
    if (std::ranges::any_of(word, is_digit)) return in_lower_case(word);
  }
  return {};
}

/// Whether a type is of the model that an unknown name begins with: A100-SXM4-40GB of "A100", MI300X of "mi300", but
/// H200-SXM-141GB not of "H20".
bool is_of_model(std::string_view type, const std::string& model)
{
  const std::string own = model_of(type);
  return own.starts_with(model) && (own.size() == model.size() || !is_digit(own[model.size()]));
}

/// Whether a name is the first words of a type without their dashes: "rtx4090" of RTX-4090, but "V100S" not of
/// V100-SXM2.
bool begins_without_dashes(std::string_view type, std::string_view name)
{
  std::string squeezed = in_lower_case(name);
  std::erase_if(squeezed, [](char character) { return character == '-' || character == '_' || character == ' '; });
  std::string words;
  for (const auto& word : separated(type, '-')) {
    words += in_lower_case(word);
    if (words == squeezed) return true;
  }
  return false;
}

/// The types of the model of an unknown name: those that begin with the name, else the most similar one, else all.
std::vector<std::string> similar_types(const std::string& name, const std::vector<std::string>& types)
{
  const std::string model = model_of(name);
  std::vector<std::string> similar;
  std::vector<std::string> longer;
  for (const auto& type : types) {
    if (model.empty()) continue;
    if (is_of_model(type, model)) similar.push_back(type);
    const bool begins = is_of_model(type, model) && in_lower_case(type).starts_with(in_lower_case(name));
    if (begins || begins_without_dashes(type, name)) longer.push_back(type);
  }
  if (!longer.empty()) return longer;
  const std::string nearest = nearest_word(name, similar);
  return nearest.empty() ? similar : std::vector{nearest};
}

}  // namespace

const std::vector<DeviceType>& device_types()
{
  static const std::vector<DeviceType> types = [] {
    std::vector<DeviceType> all;
    std::ranges::transform(rows, std::back_inserter(all), type_of);
    return all;
  }();
  return types;
}

const DeviceType* find_device_type(std::string_view name)
{
  const auto& types = device_types();
  const auto found = std::ranges::find_if(types, [&](const DeviceType& type) {
    return type.name == name || std::ranges::find(type.other_names, name) != type.other_names.end();
  });
  return found == types.end() ? nullptr : &*found;
}

const DeviceType& device_type(std::string_view name)
{
  const DeviceType* const type = find_device_type(name);
  ensure(type != nullptr, "a device type that is not in the table");
  return *type;
}

bool is_same_device_type(std::string_view one, std::string_view other)
{
  if (one == other) return true;
  const DeviceType* const type = find_device_type(one);
  return type != nullptr && type == find_device_type(other);
}

std::vector<std::string> device_type_names()
{
  std::vector<std::string> names;
  for (const auto& type : device_types()) names.push_back(type.name);
  return names;
}

std::string hint_for_device_type(const std::string& name, const std::vector<std::string>& types)
{
  const auto similar = similar_types(name, types);
  return similar.empty() ? fmt::format("the types are {}", fmt::join(types, ", "))
                         : fmt::format("did you mean {}?", fmt::join(similar, " or "));
}

}  // namespace isobar
