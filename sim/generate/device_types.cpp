#include "sim/generate/device_types.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <stdexcept>

namespace isobar::sim {

namespace {

constexpr double tera = 1e12;

DeviceType type_of(const char* name, double float32, double fp16, std::optional<double> bf16, double memory_gb,
                   double inside_gb_per_second, const char* source, const char* other_name = "")
{
  DeviceType type;
  type.name = name;
  type.other_name = other_name;
  type.float32 = FlopsPerSecond(float32 * tera);
  type.fp16 = FlopsPerSecond(fp16 * tera);
  if (bf16) type.bf16 = FlopsPerSecond(*bf16 * tera);
  type.memory = Bytes(memory_gb * 1e9);
  type.inside_bandwidth = BytesPerSecond(inside_gb_per_second * 1e9);
  type.source = source;
  return type;
}

const DeviceType* find_type(std::string_view name)
{
  for (const auto& type : device_types()) {
    if (type.name == name || (!name.empty() && type.other_name == name)) return &type;
  }
  return nullptr;
}

std::string fault_of(std::string_view part, const std::string& what)
{
  return in_quotes(part) + " " + what;
}

bool begins_with(std::string_view name, std::string_view word)
{
  const auto same = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
  return word.size() <= name.size() && std::equal(word.begin(), word.end(), name.begin(), same);
}

/// What to write instead of an unknown device type: the types that begin with it, else the most similar one, else all
/// types.
std::string hint_for(const std::string& word)
{
  std::vector<std::string> names;
  std::vector<std::string> longer;
  for (const auto& type : device_types()) {
    names.push_back(type.name);
    if (!word.empty() && begins_with(type.name, word)) longer.push_back(type.name);
  }
  if (!longer.empty()) return fmt::format("did you mean {}?", fmt::join(longer, " or "));
  const std::string nearest = nearest_word(word, names);
  return nearest.empty() ? fmt::format("the types are {}", fmt::join(names, ", "))
                         : fmt::format("did you mean {}?", nearest);
}

DeviceGroup device_group_from_text(std::string_view part)
{
  DeviceGroup group;
  const char* const end = part.data() + part.size();
  const auto [rest, failure] = std::from_chars(part.data(), end, group.count);
  const bool counted = failure == std::errc() && group.count > 0 && (rest == end || *rest == 'x');
  if (!counted) {
    throw std::invalid_argument(
        fault_of(part, "is not a number of devices; write COUNTxTYPE, such as \"8xA100-SXM4-40GB\""));
  }
  if (rest == end) return group.type.clear(), group;
  group.type = std::string(rest + 1, end);
  require_device_type(group.type);
  return group;
}

NodeGroup node_group_from_text(std::string_view part)
{
  const auto star = part.find('*');
  if (star == std::string_view::npos) return {1, device_group_from_text(part)};
  NodeGroup group;
  const char* const end = part.data() + star;
  const auto [rest, failure] = std::from_chars(part.data(), end, group.count);
  if (failure != std::errc() || group.count == 0 || rest != end) {
    throw std::invalid_argument(fault_of(part.substr(0, star),
                                         "is not a number of nodes; write NODES*COUNTxTYPE, such as "
                                         "\"4*8xA100-SXM4-40GB\""));
  }
  group.devices = device_group_from_text(part.substr(star + 1));
  return group;
}

/// The groups of "A+B+C".
template <typename Group>
std::vector<Group> groups_from_text(std::string_view text, Group (*group_from_text)(std::string_view))
{
  std::vector<Group> groups;
  while (true) {
    const auto plus = text.find('+');
    groups.push_back(group_from_text(text.substr(0, plus)));
    if (plus == std::string_view::npos) return groups;
    text.remove_prefix(plus + 1);
  }
}

std::string text_of_group(const DeviceGroup& group)
{
  return fmt::format("{}{}{}", group.count, group.type.empty() ? "" : "x", group.type);
}

std::string text_of_group(const NodeGroup& group)
{
  return fmt::format("{}*{}", group.count, text_of_group(group.devices));
}

template <typename Group>
std::string joined_texts(const std::vector<Group>& groups)
{
  std::string text;
  for (const auto& group : groups) text += (text.empty() ? "" : "+") + text_of_group(group);
  return text;
}

}  // namespace

const std::vector<DeviceType>& device_types()
{
  // Dense rates in TFLOP/s: float32, fp16 and bf16 with float32 accumulation; GB of memory; GB/s to the other devices
  // of a node, per direction, which is half of what the sheets add up. Sheets that print rates "with sparsity" are
  // halved.
  static const std::vector<DeviceType> types = {
      type_of("P100-PCIE-16GB", 9.3, 18.7, {}, 16, 16, "NVIDIA Tesla P100 data sheet, 2016"),
      type_of("P100-SXM2-16GB", 10.6, 21.2, {}, 16, 80, "NVIDIA Tesla P100 data sheet, 2016"),
      type_of("V100-SXM2-16GB", 15.7, 125, {}, 16, 150, "NVIDIA V100 data sheet, January 2020"),
      type_of("V100-SXM2-32GB", 15.7, 125, {}, 32, 150, "NVIDIA V100 data sheet, January 2020"),
      type_of("T4", 8.1, 65, {}, 16, 16, "NVIDIA T4 data sheet, 2019", "T4-16GB"),
      type_of("RTX-2080", 13.4, 53.8, {}, 11, 16,
              "NVIDIA Turing GPU architecture white paper, 2018 (the 2080 Ti, reference)", "RTX-2080-Ti"),
      type_of("Titan-RTX", 16.3, 130.5, {}, 24, 16, "NVIDIA Turing GPU architecture white paper, 2018"),
      type_of("A100-SXM4-40GB", 19.5, 312, 312, 40, 300, "NVIDIA A100 data sheet, 2021"),
      type_of("A100-SXM4-80GB", 19.5, 312, 312, 80, 300, "NVIDIA A100 data sheet, 2021"),
      type_of("A100-PCIE-40GB", 19.5, 312, 312, 40, 32, "NVIDIA A100 data sheet, 2020"),
      type_of("A100-PCIE-80GB", 19.5, 312, 312, 80, 32, "NVIDIA A100 data sheet, 2021"),
      type_of("RTX-3090", 35.6, 71, 71, 24, 32, "NVIDIA Ampere GA102 GPU architecture white paper, 2021"),
      type_of("A10", 31.2, 125, 125, 24, 32, "NVIDIA A10 data sheet, 2021"),
      type_of("A10G", 35, 70, 70, 24, 32, "NVIDIA A10G data sheet, 2021 (Amazon EC2 G5)"),
      type_of("A40", 37.4, 149.7, 149.7, 48, 32, "NVIDIA A40 data sheet, 2021"),
      type_of("H100-SXM-80GB", 66.9, 989.4, 989.4, 80, 450, "NVIDIA H100 GPU architecture white paper, 2023",
              "H100-SXM5-80GB"),
      type_of("GH200-96GB", 67, 989, 989, 96, 450, "NVIDIA GH200 Grace Hopper data sheet, 2023, halved"),
      type_of("RTX-4090", 82.6, 165.2, 165.2, 24, 32, "NVIDIA Ada GPU architecture white paper, 2022"),
      type_of("L4", 30.3, 121, 121, 24, 32, "NVIDIA L4 data sheet, 2023, halved"),
      type_of("L40S", 91.6, 362.05, 362.05, 48, 32, "NVIDIA L40S data sheet, 2023"),
      type_of("H200-SXM-141GB", 67, 989.5, 989.5, 141, 450, "NVIDIA H200 data sheet, 2024, halved"),
      type_of("B200-SXM-180GB", 75, 2250, 2250, 180, 900, "NVIDIA Blackwell data sheet (HGX B200), 2025, halved",
              "B200-SXM"),
      type_of("MI300X", 163.4, 1307.4, 1307.4, 192, 448, "AMD Instinct MI300X data sheet, 2023"),
  };
  return types;
}

const DeviceType& device_type(std::string_view name)
{
  const DeviceType* const type = find_type(name);
  ensure(type != nullptr, "a device type that is not in the table");
  return *type;
}

void require_device_type(const std::string& name)
{
  if (find_type(name) == nullptr) {
    throw std::invalid_argument(fault_of(name, "is not a device type; " + hint_for(name)));
  }
}

std::vector<DeviceGroup> device_groups_from_text(std::string_view text)
{
  return groups_from_text<DeviceGroup>(text, device_group_from_text);
}

std::string text_of(const std::vector<DeviceGroup>& groups)
{
  return joined_texts(groups);
}

std::vector<NodeGroup> node_groups_from_text(std::string_view text)
{
  return groups_from_text<NodeGroup>(text, node_group_from_text);
}

std::string text_of(const std::vector<NodeGroup>& groups)
{
  return joined_texts(groups);
}

}  // namespace isobar::sim
